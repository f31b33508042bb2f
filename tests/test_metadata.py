"""metadata.py: the lines of metadata.csv, and what is said of ids and of the second field."""

import subprocess

from corpus.metadata import read_metadata


def test_ids_are_names_of_files(tmp_path):
    """Another folder's clip would share the name of its mel with one of this folder."""
    (tmp_path / "metadata.csv").write_text("../a|Raw.|Text.\n")
    expected = "id '../a', expected a file's name, without folder and suffix; write 'a', in every"
    assert expected in read_metadata(tmp_path)[1][0]


def test_two_fields_are_id_and_text(tmp_path):
    """Where most lines have two."""
    (tmp_path / "metadata.csv").write_text("a|One.\nb|Two.\n")
    clips, problems = read_metadata(tmp_path)
    assert ([(clip.id, clip.text) for clip in clips], problems) == (
        [("a", "One."), ("b", "Two.")],
        [],
    )


def test_fields_that_repeat_may_be_speakers(tmp_path, capsys):
    path = tmp_path / "metadata.csv"
    path.write_text("".join(f"c{i}|p{225 + (i > 6)}|Text {i}.\n" for i in range(20)))
    read_metadata(tmp_path)
    warning = capsys.readouterr().out
    assert (
        f"warning: {path}: the second field has 2 values in 20 lines: 'p226' in 13, 'p225' in 7. "
        "If they are speakers, all are trained as one voice"
    ) in warning
    command = warning.partition("keep the lines of one: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert len(read_metadata(tmp_path)[0]) == 13
    assert capsys.readouterr().out == ""
    path.write_text("".join(f"c{i} | p.{i % 2} | Text {i}.\n" for i in range(20)))
    read_metadata(tmp_path)
    command = capsys.readouterr().out.partition("keep the lines of one: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert len(read_metadata(tmp_path)[0]) == 10
    for second in ("", "raw", "Text {0}.", "No. {0}"):
        lines = [f"c{i}|{second.format(i)}|Text {i}.\n" for i in range(20)]
        path.write_text("".join(lines))
        read_metadata(tmp_path)
        assert capsys.readouterr().out == ""
