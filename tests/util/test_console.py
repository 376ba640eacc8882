from nttzoo._util import console


def test_a_table_is_plain_aligned_text():
    text = console.table("title", ("layer", "weights"), [("conv1", 10), ("a.very.long.name", 12_000)])
    assert text.splitlines() == [
        "title",
        "layer             weights",
        "conv1                  10",
        "a.very.long.name    12000",
    ]


def test_a_total_is_ruled_off():
    lines = console.table("", ("", "n"), [("a", 1), ("total", 1)], total=True).splitlines()
    assert [line.split() for line in lines] == [["n"], ["a", "1"], ["-----", "-"], ["total", "1"]]


def test_a_name_is_never_cut():
    name = "layers." * 20 + "kernel"
    assert name in console.table("", ("layer", "n"), [(name, 1)])


def test_a_progress_bar_shows_a_tasks_note_on_stderr_unless_it_is_hidden(capsys):
    for show in (True, False):
        with console.progress_bar(show=show) as bar:
            task = bar.add_task("training", total=2, note="")
            bar.update(task, advance=2, note="epoch 1")
        out, err = capsys.readouterr()
        assert out == ""
        assert ("epoch 1" in err) == show
