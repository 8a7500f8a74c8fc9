"""What came of making the papers' items again, as docs/reproduced has it.

    python scripts/reproduced.py                      writes the summary and the seeds' numbers anew
    python scripts/reproduced.py --pages FOLDER       makes every item's page, picture and tables
    python scripts/reproduced.py --add FOLDER         takes in the results of `fedseed reproduce`

Results that are taken in replace those of the same item and scale.
"""

import argparse
from pathlib import Path

from fedseed_papers.records import collect, read_results, write_pages, write_results

REPRODUCED = Path(__file__).resolve().parents[1] / "docs" / "reproduced"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=Path, metavar="FOLDER", help="where the pages go")
    parser.add_argument("--add", type=Path, metavar="FOLDER", help="--out of fedseed reproduce")
    asked = parser.parse_args()
    results = read_results(REPRODUCED)
    if asked.pages is not None:
        write_pages(asked.pages, results)
        print(f"{asked.pages / 'index.html'}: {len(results)} items")
        return
    by_item = {(result["name"], result["scale"]): result for result in results}
    if asked.add is not None:
        for result in collect(asked.add):
            by_item[result["name"], result["scale"]] = result
            print(f"{result['name']} ({result['scale']}): {result['verdict']}")
    write_results(REPRODUCED, list(by_item.values()))


if __name__ == "__main__":
    main()
