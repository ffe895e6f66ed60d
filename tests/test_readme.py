"""The Python of the README runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_in_python(capsys):
    [example] = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    exec(compile(example, str(README), "exec"), {})
    assert "def " in capsys.readouterr().out
