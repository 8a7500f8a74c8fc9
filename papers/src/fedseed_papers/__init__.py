"""The figures and tables of the papers, made again.

What there is: `catalogue`. What needs no training: `ferret`, `fedkseed`, `feedsign`, `measuring`.
What sweeps of runs
show: `training`. All of it as files and pages: `reproducing`.
"""
