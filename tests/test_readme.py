"""The Python of the README and of the guides runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.long(ci=True)
def test_the_examples_of_the_guide_to_generation(capsys):
    """In order, with the demo model."""
    guide = README.with_name("docs") / "generation.md"
    examples = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.M | re.S)
    assert len(examples) >= 8
    names = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{guide} {number}", "exec"), names)
    assert "_" not in names["plain_names"].text
    assert not [stop for stop in ("return", "\n\n") if stop in names["until"].text]
    assert len(names["several"]) == 3
    assert names["scored"].top_ids.shape == (8, 3)
    assert "0 '" in capsys.readouterr().out
