"""Shares of a run key: arithmetic (published numbers, enumeration), files, commands."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import re
import stat
from collections import Counter
from pathlib import Path

import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody import run_key, secret_files
from opendas.custody.run_key import KeyShare, RunKey, join_shares, save_shares, split_key
from opendas.errors import ConfigError, EnvironmentFailure, PrivacyError

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
KEY = RunKey(bytes(range(32)))


def command(*words: str | Path) -> int:
    return guarded(cli, [str(word) for word in words])


# The arithmetic.


def is_composite(number: int, base: int) -> bool:
    """The strong test of Miller (1976): what it finds is composite."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    powers = [pow(base, odd << i, number) for i in range(twos)]
    return powers[0] != 1 and number - 1 not in powers


def test_the_field_is_the_least_above_every_key() -> None:
    bases = [n for n in range(2, 200) if all(n % d for d in range(2, n))]
    assert not any(is_composite(run_key._PRIME, base) for base in bases)
    for number in range(2**256, run_key._PRIME):
        assert number % 2 == 0 or any(is_composite(number, base) for base in bases)


def test_shares_agree_with_the_published_example(monkeypatch: Patch) -> None:
    """The example that textbooks and Wikipedia give: secret 1234, coefficients 166 and 94, modulo 1613."""
    drawn = iter([166, 94])
    monkeypatch.setattr(run_key, "_random_below", lambda bound: next(drawn))
    values = run_key._shares_of(1234, 6, 3, 1613)
    assert values == [1494, 329, 965, 176, 1188, 775]
    points = dict(enumerate(values, start=1))
    for three in itertools.combinations(points, 3):
        assert run_key._value_at_zero({at: points[at] for at in three}, 1613) == 1234


@pytest.mark.parametrize("threshold", [2, 3, 4])
def test_fewer_shares_leave_every_secret_equally_likely(threshold: int, monkeypatch: Patch) -> None:
    """By enumeration of every secret and every draw in the field of seven: the law of what fewer than
    `threshold` shares show is the same for all secrets, uniform, and that of `threshold` tells the secret."""
    prime, shares = 7, 5
    splits: dict[int, list[list[int]]] = {secret: [] for secret in range(prime)}
    for secret in range(prime):
        for coefficients in itertools.product(range(prime), repeat=threshold - 1):
            drawn = iter(coefficients)
            monkeypatch.setattr(run_key, "_random_below", lambda bound, drawn=drawn: next(drawn))
            splits[secret].append(run_key._shares_of(secret, shares, threshold, prime))
    for size in range(1, threshold):
        for who in itertools.combinations(range(shares), size):
            laws = [Counter(tuple(s[i] for i in who) for s in splits[secret]) for secret in range(prime)]
            assert all(law == laws[0] for law in laws)
            assert set(laws[0].values()) == {prime ** (threshold - 1 - size)}
            assert len(laws[0]) == prime**size
    for size in range(threshold, shares + 1):
        for who in itertools.combinations(range(shares), size):
            for secret, found in splits.items():
                for values in found:
                    seen = {i + 1: values[i] for i in who}
                    assert run_key._value_at_zero(seen, prime) == secret


def test_coefficients_are_uniform_and_the_system_s(monkeypatch: Patch) -> None:
    """Every string of the operating system's bytes that is taken gives one number, each number one string."""
    for bound in (2, 7, 11, 200, 256, 257, 300):
        width = (bound.bit_length() + 7) // 8
        found: Counter[int] = Counter()
        for first in itertools.product(range(256), repeat=width):
            answers = iter([bytes(first), None])
            monkeypatch.setattr(os, "urandom", lambda n, a=answers: next(a))
            try:
                found[run_key._random_below(bound)] += 1
            except TypeError:  # it asked again
                continue
        assert set(found) == set(range(bound))
        assert len(set(found.values())) == 1


def test_each_split_draws_anew() -> None:
    one, two = (split_key(KEY, 3, 2) for _ in range(2))
    assert not {share._value for share in one} & {share._value for share in two}
    assert join_shares([one[0], one[2]]) == join_shares([two[1], two[0]]) == KEY._secret


# What is taken and what is refused.


def test_every_subset_of_enough_shares_gives_the_key() -> None:
    for threshold, count in [(2, 2), (2, 3), (3, 5), (5, 5), (4, 7)]:
        shares = split_key(KEY, count, threshold)
        for size in range(count + 1):
            for some in (
                itertools.permutations(shares, size) if size < 4 else itertools.combinations(shares, size)
            ):
                if size < threshold:
                    with pytest.raises(PrivacyError):
                        join_shares(some)
                else:
                    assert join_shares(some) == KEY._secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\1"])
def test_keys_at_the_ends_are_keys(secret: bytes) -> None:
    assert join_shares(split_key(RunKey(secret), 255, 20)[235:]) == secret


def test_shares_that_are_not_of_one_key_are_refused() -> None:
    one, two = split_key(KEY, 3, 2), split_key(RunKey.generate(), 3, 2)
    with pytest.raises(PrivacyError, match="not of one key"):
        join_shares([one[0], two[1]])
    with pytest.raises(PrivacyError, match="not of one key"):
        join_shares([])
    with pytest.raises(PrivacyError, match="given twice"):
        join_shares([one[0], one[0]])
    with pytest.raises(PrivacyError, match="1 of 3 shares are given; 2 are needed"):
        join_shares(one[:1])
    other = split_key(KEY, 3, 2)
    with pytest.raises(PrivacyError, match="do not give the key"):
        join_shares([one[0], other[1]])


def test_a_forged_share_gives_no_other_key() -> None:
    shares = split_key(KEY, 4, 3)
    for change in (1, -1, 2**200, run_key._PRIME // 2):
        value = (shares[1]._value + change) % run_key._PRIME
        forged = KeyShare(KEY.commitment(), 3, 4, 2, value)
        for others in (shares[2:], (shares[0], *shares[2:])):
            with pytest.raises(PrivacyError, match="do not give the key"):
                join_shares([forged, *others])
    lowered = [KeyShare(KEY.commitment(), 2, 4, share.index, share._value) for share in shares[:2]]
    with pytest.raises(PrivacyError, match="do not give the key"):
        join_shares(lowered)


@pytest.mark.parametrize(("count", "threshold"), [(3, 1), (2, 3), (256, 2), (0, 0), (5, -1), (1, 1)])
def test_numbers_that_are_no_split_are_refused(count: int, threshold: int) -> None:
    with pytest.raises(ConfigError, match="at most 255"):
        split_key(KEY, count, threshold)


def test_a_seed_is_not_split() -> None:
    with pytest.raises(PrivacyError, match="seed"):
        split_key(RunKey.seeded(1), 3, 2)


def test_a_share_shows_and_sends_nothing() -> None:
    share = split_key(KEY, 3, 2)[1]
    assert repr(share) == "KeyShare(<2 of 3>)"
    with pytest.raises(TypeError):
        pickle.dumps(share)


# Files.


def test_the_file_is_as_described(tmp_path: Path) -> None:
    share = split_key(KEY, 3, 2)[2]
    share.save(tmp_path / "a.share")
    text = (tmp_path / "a.share").read_text()
    above = text[: -len("\n") - 64]
    assert re.fullmatch(
        rf"opendas-key-share 1\nkey {KEY.commitment()}\nthreshold 2 of 3\nshare 3\n[0-9a-f]{{65}}\n", above
    )
    assert text.splitlines()[-1] == hashlib.sha256(above.encode()).hexdigest()
    assert stat.S_IMODE((tmp_path / "a.share").stat().st_mode) == 0o600
    assert KeyShare.load(tmp_path / "a.share")._text() == text


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.share"
    split_key(KEY, 3, 2)[0].save(path)
    good = path.read_bytes()
    changed = [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(len(good))]
    for data in (b"", good[:-1], good + b"\n", good * 2, good.upper(), b"\xff" + good, *changed):
        path.write_bytes(data)
        with pytest.raises(PrivacyError, match="not a share of a key, or it was changed"):
            KeyShare.load(path)
    path.write_bytes(good)
    KeyShare.load(path)


@pytest.mark.parametrize("numbers", [(1, 3, 1), (4, 3, 1), (2, 3, 0), (2, 3, 4), (2, 999, 1)])
def test_numbers_that_no_split_writes_are_damage(numbers: tuple[int, int, int], tmp_path: Path) -> None:
    KeyShare(KEY.commitment(), *numbers, 5).save(tmp_path / "a")
    with pytest.raises(PrivacyError, match="was changed"):
        KeyShare.load(tmp_path / "a")


def test_shares_that_others_may_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.share"
    with pytest.raises(PrivacyError, match="no share of a key at"):
        KeyShare.load(path)
    split_key(KEY, 3, 2)[0].save(path)
    path.chmod(0o640)
    with pytest.raises(PrivacyError, match="0640"):
        KeyShare.load(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(PrivacyError, match="link"):
        KeyShare.load(tmp_path / "link")
    os.link(path, tmp_path / "second")
    with pytest.raises(PrivacyError, match="2 names"):
        KeyShare.load(path)


def test_all_shares_are_written_or_none(tmp_path: Path, monkeypatch: Patch) -> None:
    folder, shares = tmp_path / "shares", split_key(KEY, 4, 2)
    whole, begun = KeyShare.save, []

    def fails_at_the_third(share: KeyShare, path: Path) -> None:
        begun.append(path)
        if share.index == 3:
            raise EnvironmentFailure("no space")
        whole(share, path)

    with monkeypatch.context() as patch:
        patch.setattr(KeyShare, "save", fails_at_the_third)
        with pytest.raises(EnvironmentFailure, match="no space"):
            save_shares(shares, folder)
    assert len(begun) == 3
    assert not folder.exists()
    assert save_shares(shares, folder) == tuple(folder / f"{n}.share" for n in range(1, 5))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(PrivacyError, match="new folder"):
        save_shares(shares, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert secret_files.read_secret(folder / "1.share").startswith("opendas-key-share 1\n")


# Commands.


def test_what_is_split_is_joined_and_nothing_else_shows_it(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "shares"
    assert command("keys", "split", "--shares", "5", "--threshold", "3", "--to", folder, "--json") == 0
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert made["shares"] == [str(folder / f"{n}.share") for n in range(1, 6)]
    assert made["threshold"] == 3
    paths = [Path(path) for path in made["shares"]]
    printed = set()
    for size in (3, 4, 5):
        for some in itertools.combinations(paths, size):
            assert command("keys", "join", *some) == 0
            printed.add(capsys.readouterr().out)
    (text,) = printed
    assert re.fullmatch(r"[0-9a-f]{64}\n", text)
    assert RunKey(bytes.fromhex(text)).commitment() == made["key_commitment"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert text.strip().encode() not in written
    assert text.strip() not in said.out + said.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "1.share",
        *(f"{n}.share" for n in range(2, 6)),
        "shares",
    ]


def test_each_split_makes_another_key(tmp_path: Path, capsys: Capture) -> None:
    keys = set()
    for name in ("a", "b"):
        assert command("keys", "split", "--shares", "2", "--threshold", "2", "--to", tmp_path / name) == 0
        capsys.readouterr()
        assert command("keys", "join", tmp_path / name / "1.share", tmp_path / name / "2.share") == 0
        keys.add(capsys.readouterr().out)
    assert len(keys) == 2


def test_a_refusal_prints_no_digit_of_the_key(tmp_path: Path, capsys: Capture) -> None:
    one = save_shares(split_key(KEY, 3, 2), tmp_path / "one")
    two = save_shares(split_key(RunKey.generate(), 3, 2), tmp_path / "two")
    (tmp_path / "bad").write_bytes(one[1].read_bytes().replace(b"share 2", b"share 3"))
    (tmp_path / "bad").chmod(0o600)
    cases = {
        (one[0],): "1 of 3 shares are given; 2 are needed",
        (one[0], one[0]): "given twice",
        (one[0], two[1]): "not of one key",
        (one[0], tmp_path / "bad"): "was changed",
        (one[0], tmp_path / "none"): "no share of a key at",
    }
    for paths, sentence in cases.items():
        assert command("keys", "join", *paths) == 4
        said = capsys.readouterr()
        assert said.out == ""
        assert sentence in " ".join(said.err.split())
    assert command("keys", "join") == 2
    assert command("keys", "split", "--shares", "2", "--threshold", "3", "--to", tmp_path / "c") == 2
    assert command("keys", "split", "--shares", "3", "--threshold", "2", "--to", tmp_path / "one") == 4
    assert command("keys", "split", "--shares", "3", "--threshold", "2", "--to", tmp_path / "x" / "y") == 6
    assert not (tmp_path / "c").exists()
