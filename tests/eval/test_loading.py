"""eval.loading: the memory of processes that share a checkpoint."""

import pytest

from eval.loading import Share, main, table


@pytest.mark.long
def test_a_process_reads_its_share(capfd):
    main(["--size", "300MB", "--processes", "2"])
    rows = [line.split("|")[1:-1] for line in capfd.readouterr().out.splitlines()[-2:]]
    for row in rows:
        _, share, tensor, before, peak, beyond = (
            float(cell.replace("MB", "").replace(",", "")) for cell in row[:6]
        )
        assert 150 < share < 220
        assert beyond == pytest.approx(peak - before - share - tensor, abs=3)
        assert beyond < 300


def test_the_table():
    lines = table([Share(10**9, 10**8, 10**8, 13 * 10**8, 2.0)]).splitlines()
    assert lines[0].startswith("| process | share | largest tensor |")
    assert lines[2] == "| 0 | 1,000 MB | 100 MB | 100 MB | 1,300 MB | 100 MB | 2.0 |"
