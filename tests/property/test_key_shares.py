"""Any key, any numbers: enough shares give the key, in any order; what was forged gives nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import examples

from opendas.custody.run_key import KeyShare, RunKey, join_shares, split_key
from opendas.errors import PrivacyError

secrets = st.binary(min_size=32, max_size=32)


@given(secrets, st.data())
@settings(max_examples=examples(100), deadline=None)
def test_enough_shares_give_the_key_and_fewer_nothing(secret: bytes, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    threshold = data.draw(st.integers(2, count))
    shares = split_key(RunKey(secret), count, threshold)
    given_ = data.draw(st.permutations(shares))[: data.draw(st.integers(1, count))]
    try:
        assert join_shares(given_) == secret
        assert len(given_) >= threshold
    except PrivacyError:
        assert len(given_) < threshold


@given(secrets, st.data())
@settings(max_examples=examples(100), deadline=None)
def test_no_other_value_is_taken_for_a_share(secret: bytes, data: st.DataObject) -> None:
    shares = list(split_key(RunKey(secret), 4, 3))
    at = data.draw(st.integers(0, 3))
    value = data.draw(st.integers(0, 16**65 - 1))
    good = shares[at]
    shares[at] = KeyShare(good.commitment, good.threshold, good.shares, good.index, value)
    try:
        assert join_shares(shares) == secret
        assert (value - good._value) % (2**256 + 297) == 0
    except PrivacyError:
        assert value != good._value
