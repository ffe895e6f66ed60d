"""What must hold for every figure."""

from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text

from dart_jax.programs.figures import SMALL, WIDTH


def check_style(figure):
    """Legible on a page, no room left empty, and a note that tells what the error bars are."""
    figure.draw_without_rendering()
    assert figure.get_figwidth() == WIDTH
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    assert min(text.get_fontsize() for text in shown) >= SMALL >= 9
    assert "rror bars" in note_of(figure)
    rows = {}
    for axes in figure.axes:
        box = axes.get_position()
        rows.setdefault(axes.get_subplotspec().rowspan.start, []).append((box.x0, box.x1))
        data, (left, right), (bottom, top) = axes.dataLim, axes.get_xlim(), axes.get_ylim()
        if axes.get_xscale() == "linear":
            assert data.x0 < (left + right) / 2 < data.x1, axes.get_title()
        if axes.get_yscale() == "linear":
            assert data.y1 >= (bottom + top) / 2 - 1e-6, axes.get_title()
    for spans in rows.values():
        assert min(start for start, _ in spans) < 0.25
        assert max(end for _, end in spans) > 0.9


def note_of(figure):
    """The line below the panels."""
    return figure.get_supxlabel()


def ends_of(axes):
    """The lower and upper ends of the error bars, in the order drawn."""
    drawn = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    segments = [path for each in drawn for path in each.lines[2][0].get_segments()]
    return [(segment[0][1], segment[1][1]) for segment in segments]
