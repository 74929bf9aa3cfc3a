"""Any passphrase opens its own key and no other; any damage to a key file is refused and shows nothing."""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.custody import passphrase as sealing
from opendas.custody.passphrase import Passphrase
from opendas.custody.run_key import RunKey
from opendas.errors import PrivacyError

texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=12, max_size=60
).filter(lambda text: len(unicodedata.normalize("NFC", text)) >= 12)
secrets = st.binary(min_size=32, max_size=32)


@pytest.fixture(autouse=True, scope="module")
def _cheap() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "_COST", (1 << 14, 8, 1))
        yield


@given(secrets, texts, texts)
@settings(max_examples=examples(25), deadline=None)
def test_a_key_opens_with_its_passphrase_and_with_no_other(secret: bytes, text: str, other: str) -> None:
    key = RunKey(secret)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key")
        key.save(path, Passphrase(text))
        assert RunKey.load(path, Passphrase(unicodedata.normalize("NFD", text))) == key
        data = path.read_bytes()
        assert secret.hex().encode() not in data
        assert unicodedata.normalize("NFC", text).encode() not in data
        if Passphrase(other) != Passphrase(text):
            with pytest.raises(PrivacyError, match="does not open"):
                RunKey.load(path, Passphrase(other))


damage = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 400), st.just(b"")),
    st.tuples(st.just("put"), st.integers(0, 400), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("over"), st.integers(0, 400), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("all"), st.just(0), st.binary(max_size=600)),
)


@given(secrets, st.booleans(), damage)
@settings(max_examples=examples(150), deadline=None)
def test_damage_is_refused_and_shows_nothing(
    secret: bytes, is_sealed: bool, change: tuple[str, int, bytes]
) -> None:
    key, passphrase = RunKey(secret), Passphrase("twelve letters") if is_sealed else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key")
        key.save(path, passphrase)
        good = path.read_bytes()
        what, place, data = change
        path.write_bytes(
            {
                "cut": good[:place],
                "put": good[:place] + data + good[place:],
                "over": good[:place] + data + good[place + len(data) :],
                "all": data,
            }[what]
        )
        told, loaded = outcome(lambda: RunKey.load(path, passphrase))
        assert secret.hex()[:16] not in told
        # Of a key in clear digits may be exchanged for others; its commitment in the ledger tells.
        assert loaded in (None, key) or not is_sealed


def outcome(act: Callable[[], object]) -> tuple[str, object]:
    """Return what a refusal says, or the result."""
    try:
        return "", act()
    except PrivacyError as error:
        return str(error), None


@given(st.text(max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_every_text_is_a_passphrase_or_refused(text: str) -> None:
    told, passphrase = outcome(lambda: Passphrase(text))
    if passphrase is None:
        assert len(text) < 8 or text not in told
        return
    assert text
    assert "\n" not in text
    assert passphrase == Passphrase(unicodedata.normalize("NFD", text))
    assert repr(passphrase) == "Passphrase(<hidden>)"
