"""How pictures and pages look: colours that stay apart, also for colour-blind readers. Free of Matplotlib."""

# twelve colours, then the same with dashes: the first six are those of earlier pictures
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288", "#44AA99", "#999933",
           "#661100", "#6A6A6A")  # fmt: skip
DASHES = ("", "6 3", "2 2", "7 2 2 2")  # as SVG has them, in units of a line's width
# the same colours before a dark ground
DARK_COLOURS = ("#4DA3DB", "#F0803C", "#35C79B", "#E29CC3", "#F0B840", "#7CC8F0", "#D0608C", "#9A8CE8", "#6CC9BC",
                "#C6C664", "#C98A6C", "#A8A8A8")  # fmt: skip


def look(number: int) -> tuple[int, int]:
    """Which colour and which dashes the line of this number has: 48 lines look different."""
    return number % len(COLOURS), number // len(COLOURS) % len(DASHES)
