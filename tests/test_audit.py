"""The audit says aloud when it cannot be made; pip-audit itself does the rest."""

from __future__ import annotations

import pytest

from scripts import audit
from tests.http_server import answering

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'{"vulnerabilities": []}', ""),
        (404, b"", "answers 404"),
        (200, b"<html>a mirror</html>", "lists no vulnerabilities"),
    ],
)
def test_whether_there_are_advisories(status, body, words):
    with answering(status, body) as (url, _):
        why = audit.find_obstacle(f"{url}/pypi/pip/json")
    assert words in why
    assert bool(why) == bool(words)


def test_out_of_reach_is_loud_and_has_a_status_of_its_own(monkeypatch, capsys):
    with answering() as (url, _):
        pass
    monkeypatch.setattr(audit, "PROBE", url)
    assert audit.main([]) == 3
    assert "*** NOT AUDITED" in capsys.readouterr().out


def test_every_pin_of_every_lock_is_audited():
    locks = [lock.read_text() for lock in audit.LOCKS]
    files = [text.split() for text in audit.list_pins(locks)]
    for pinned in files:
        names = [pin.partition("==")[0] for pin in pinned]
        assert len(names) == len(set(names))
    lines = [line for lock in locks for line in lock.splitlines() if line[:1].isalnum()]
    wanted = {line.split()[0].partition("+")[0] for line in lines}
    assert {pin for pinned in files for pin in pinned} == wanted
    assert "torch==2.13.0" in wanted
    lock = "a==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:0\na==2.0\nb[c]==2.0+cpu\n"
    assert audit.list_pins([lock]) == ["a==1.0\nb==2.0\n", "a==2.0\n"]


def test_every_exception_has_a_reason():
    audit.read_ignored(audit.IGNORED.read_text())
    assert audit.read_ignored("# why\n\nPYSEC-1 only on Windows\n") == ["PYSEC-1"]
    with pytest.raises(ValueError, match="PYSEC-2"):
        audit.read_ignored("PYSEC-2\n")
