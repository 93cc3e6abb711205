"""What counts as a block of code on a page."""

from tests.docs.blocks import INDENTED, read_blocks

PAGE = """# Page

```python
one = 1
```

## Section

<!-- not run: needs two GPUs -->
```python
two = 2
```

    rankwise check a.pt   # comment
    rankwise check \\
        b.pt

```console
$ rankwise explain q
the paper's quality
```

Words, then

    a formula, not a command

```toml
x = 1
```

    rankwise explain s"""


def test_blocks_have_places_sections_reasons_and_commands(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    blocks = read_blocks(path)
    assert [block.language for block in blocks] == [
        *("python", "python", INDENTED, "console", INDENTED, "toml", INDENTED)
    ]
    first, second, indented, console, formula, *_, last = blocks
    assert (first.place, first.section, first.reason) == ("page.md:4", "Page", "")
    assert (second.section, second.reason) == ("Section", "needs two GPUs")
    assert indented.reason == ""
    assert indented.commands == ["rankwise check a.pt   # comment", "rankwise check b.pt"]
    assert console.commands == ["rankwise explain q"]
    assert last.commands == ["rankwise explain s"]
    assert not first.commands
    assert not formula.commands
