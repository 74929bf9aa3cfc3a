"""One privacy act: key, the same input?, intent in the ledger, only then draws; finish, and resume.

An act goes from :class:`Planned` (nothing is spent) over :class:`Identified` (it has its key, and is the act
of an earlier attempt if there was one) to :class:`Charged` (its loss counts as spent, and noise may be
drawn), and ends as the state that :meth:`Act.finish` writes. Runs and household tables are acts alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from secrets import token_hex
from typing import Any, Generic, TypeVar

from opendas.custody.folders import write_atomic
from opendas.custody.ledger_entries import INFINITE, LedgerEntry, Loss
from opendas.custody.run_key import RunKey
from opendas.custody.stamps import KeyCustody
from opendas.errors import ConfigError, PrivacyError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.runs.context.account import InputTagger, check_given, find_book
from opendas.runs.context.workspace import RunState, Workspace, read_state
from opendas.runs.options import ActOptions
from opendas.runs.progress.clock import Clock
from opendas.runs.progress.log import RunLog, log_path
from opendas.version import __version__, issue_date

O = TypeVar("O", bound=ActOptions)  # noqa: E741
Issue = Callable[[Mapping[str, Any], KeyCustody], object]


@dataclass(frozen=True, slots=True)
class Planned:
    """What an act will be a function of, beside input and key, and what it will cost."""

    plan_digest: str
    estimation_digest: str
    mechanism: Mechanism
    losses: Mapping[Neighbours, Loss]  # under the relation of the plan first, then under others
    protected_unit: str
    # Where the confidential input is read from; for an input in memory, nothing.
    inputs: tuple[Path | str, ...] = ()
    unit_factor: Fraction = Fraction(1)
    exact: tuple[str, ...] = ()
    frame_digest: str = ""

    def entry(self, state: RunState, tags: tuple[str, ...] = (), *, seeded: bool) -> LedgerEntry:
        """Return the entry of the ledger; the loss of seeded noise is infinite.

        `tags` are those of the input under the key of a book.
        """
        losses = {relation: INFINITE if seeded else loss for relation, loss in self.losses.items()}
        relation = next(iter(losses))
        return LedgerEntry(
            run_id=state.run_id,
            product=state.product,
            key_commitment=state.key_commitment,
            input_tag=state.input_tag,
            plan_digest=state.plan_digest,
            mechanism=self.mechanism,
            loss=losses.pop(relation),
            relation=relation,
            protected_unit=self.protected_unit,
            version=state.version,
            seeded=seeded,
            other_relations=losses,
            unit_factor=self.unit_factor,
            exact=self.exact,
            frame_digest=self.frame_digest,
            inputs=tags,
        )


@dataclass(frozen=True, slots=True)
class Identified:
    """An act with its key; input, plan, seed and version are those of the earlier attempt, if any."""

    planned: Planned
    state: RunState
    key: RunKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class Charged:
    """An act that stands in the ledger: noise may be drawn."""

    state: RunState
    key: RunKey = field(repr=False)


class Act(Generic[O]):
    """An attempt at an act, in an output folder that is locked for it; made by :func:`open_act`.

    `clock`: its laps are logged.
    """

    def __init__(self, space: Workspace, product: str, options: O, clock: Clock, log: RunLog) -> None:
        self.space = space
        self.product = product
        self.options = options
        self.clock = clock
        self.log = log
        self.earlier = space.load_state(product)
        """State of an earlier attempt."""
        self._key: RunKey | None = None
        self._tags: tuple[str, ...] = ()

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress, to log and caller."""
        self.log.progress(stage, done, total)
        self.options.tell(stage, done, total)

    def refuse_repetition(self) -> None:
        """Refuse to find an earlier attempt, unless it is to be resumed."""
        if self.earlier is not None and not self.options.resume:
            raise ConfigError(
                f"{self.space.out} holds a run of {self.product} already. With --resume, the command that "
                "started it finishes it or returns its result, and spends nothing. "
                f"{left_out(self.space.out, self.earlier)}A run in another output folder spends its budget "
                "again."
            )

    @property
    def known(self) -> Mapping[str, Any]:
        """What is known of the result of an earlier attempt."""
        return {} if self.earlier is None else self.earlier.known

    @property
    def is_finished(self) -> bool:
        """Whether an earlier attempt was finished."""
        return self.earlier is not None and self.earlier.phase == "finished"

    @property
    def has_key(self) -> bool:
        """Whether the key is at hand: stored in clear or with a passphrase given, fetched, or of a seed."""
        of_seed = self.earlier is not None and self.options.seed == self.earlier.seed is not None
        return (
            of_seed
            or self.options.key_command is not None
            or self.space.key_at_hand(self.product, self.options.passphrase)
        )

    def check_without_key(self, planned: Planned) -> None:
        """Refuse to resume with another plan, seed or version, and with other files of the input.

        Without the key nobody can say whether an input is the one that was tagged: files of other names, or
        changed since, are refused.
        """
        if self.earlier is not None:
            self._check_same(
                replace(
                    self.earlier,
                    version=__version__,
                    plan_digest=planned.plan_digest,
                    estimation_digest=planned.estimation_digest,
                    seed=self.options.seed,
                )
            )
            self._check_files(planned)

    def find_account(self, tagger: InputTagger) -> None:
        """Find the book that this act belongs into: the one given, or one that knows the input.

        Raises `PrivacyError` if the account would be split.
        """
        space = self.space
        if space.book is not None:
            check_given(space.book, tagger)
        elif self.earlier is None and (found := find_book(tagger)) is not None:
            space.join(found)
        if space.book is not None:
            self._tags = tagger(space.book.key)

    def key(self) -> RunKey:
        """Make the key of a new act, on disk before this returns; or find that of an earlier attempt.

        Where records are chosen under a key, it is wanted before the input is read.

        Raises `PrivacyError` if the key is lost or another one, or the folder's ledger has the product and
        its state is gone.
        """
        if self._key is None:
            space, options = self.space, self.options
            if self.earlier is None:
                self._refuse_second_act()
                self._key = space.new_key(self.product, options.seed, options.key_command, options.passphrase)
            else:
                self._key = space.known_key(self.earlier, options.key_command, options.passphrase)
        return self._key

    def identify(self, planned: Planned, tag_input: Callable[[RunKey], str]) -> Identified:
        """Bind a new act to its key and its input; or find that it is the act of an earlier attempt.

        `tag_input` (key): returns the keyed tag of the input.

        Raises `PrivacyError` as :meth:`key`; and if input, plan, seed or version are others than the earlier
        attempt's.
        """
        key, earlier = self.key(), self.earlier
        state = RunState(
            run_id=token_hex(16) if earlier is None else earlier.run_id,
            product=self.product,
            version=__version__,
            plan_digest=planned.plan_digest,
            estimation_digest=planned.estimation_digest,
            input_tag=tag_input(key),
            key_commitment=key.commitment(),
            seed=self.options.seed,
        )
        self._check_same(state)
        return Identified(planned, state if earlier is None else earlier, key)

    def charge(self, act: Identified, result: Mapping[str, Any] | None = None) -> Charged:
        """Enter the act into the ledger; draw only after this returns.

        `result`: what is known of the result of a new act already, kept in its state.

        Raises `PrivacyError` if the ledger refuses it: then it is as if it had never been started.
        """
        entry = act.planned.entry(act.state, self._tags, seeded=act.key.is_seeded)
        if self.earlier is not None:
            self.space.ledger.intend(entry)
            return Charged(act.state, act.key)
        state = replace(act.state, result=result)
        write_atomic(self._files, json.dumps(_changed_when(act.planned.inputs), indent=1).encode())
        self.space.begin(state, entry)
        return Charged(state, act.key)

    def finish(
        self,
        state: RunState,
        result: Mapping[str, Any],
        facts: Mapping[str, Any],
        issue: Issue,
        phase: str = "finished",
    ) -> dict[str, Any]:
        """End an act whose files are all written: key, certificate, state and ledger, in this order.

        What is to be done is written down first, so that a death anywhere in between leaves what
        :meth:`finish_ending` completes: from then on neither key nor input is needed.

        - `facts`: what the certificate is to say, as JSON values.
        - `issue` (facts, custody): issues the certificate.
        - `phase`: ``finished``, or ``measured``.
        """
        custody = self._custody(state)
        state = replace(
            state,
            phase=phase,
            result={**result, "key": custody.value},
            ending={"key": custody.value, "facts": facts},
        )
        self.space.save_state(state)
        self._end(state, issue)
        return self.answer()

    def finish_ending(self, issue: Issue) -> None:
        """Complete what a death in :meth:`finish` left undone, if this version began it."""
        earlier = self.earlier
        if earlier is not None and earlier.ending is not None and earlier.version == __version__:
            self._end(earlier, issue)

    def _end(self, state: RunState, issue: Issue) -> None:
        assert state.ending is not None
        custody = KeyCustody(state.ending["key"])
        if custody in (KeyCustody.DESTROYED, KeyCustody.SEED):
            self.space.destroy_key(state)
        issue(state.ending["facts"], custody)
        self.clock.lap("certificate and report")
        self.clock.save(self._timings)
        self.earlier = replace(state, ending=None)
        self.space.save_state(self.earlier)
        self.space.close(self.earlier)

    def _custody(self, state: RunState) -> KeyCustody:
        """Return where the key of a run is, or is to be, when its release is complete."""
        path = self.space.key_path(self.product)
        known = state.known.get("key")
        if state.seed is not None:
            return KeyCustody.SEED
        if state.is_borrowed:
            return KeyCustody.NONE
        if path.exists() and self.options.keep_key:
            return KeyCustody.SEALED if RunKey.is_encrypted(path) else KeyCustody.KEPT
        # A key that never had a file is where its command finds it; any other is gone, or will be.
        never_stored = not path.exists() and known in (None, KeyCustody.ELSEWHERE)
        return KeyCustody.ELSEWHERE if never_stored else KeyCustody.DESTROYED

    def answer(self) -> dict[str, Any]:
        """Return the answer of an act that is finished."""
        return {"out": str(self.space.out), **self.known, **Clock.read(self._timings)}

    @property
    def _timings(self) -> Path:
        return self.space.confidential / "timings" / f"{self.product}.json"

    @property
    def _files(self) -> Path:
        return self.space.confidential / "inputs" / f"{self.product}.json"

    def _check_files(self, planned: Planned) -> None:
        """Refuse files of the input that are there now, and are none of those that were read."""
        if not self._files.is_file():
            return  # of a version that did not note them
        read = json.loads(self._files.read_bytes())
        other = [name for name, changed in _changed_when(planned.inputs).items() if read.get(name) != changed]
        if other:
            raise PrivacyError(
                f"{other[0]} is not a file that the run of {self.product} in this folder read, or it was "
                "written again since. Without the run's key the program cannot tell whether its content is "
                "the same. To get the result of that run, give the files that it read, unchanged. A new run "
                "in a new folder is charged in full."
            )

    def _check_same(self, now: RunState) -> None:
        differing = () if self.earlier is None else self.earlier.differing(now)
        if differing:
            raise PrivacyError(
                f"this command cannot resume the run of {self.product} in this folder: the two differ in "
                f"{' and in '.join(differing)}. To resume that run, make them the same. A new run in a new "
                "folder is charged in full."
            )

    def _refuse_second_act(self) -> None:
        """Refuse a product again in a folder whose state of the first act was removed.

        The certificate would speak of the second act only, while the first may have been published.
        """
        entries = () if self.space.book is not None else self.space.ledger.entries()
        if any(entry.product == self.product for entry in entries):
            raise PrivacyError(
                f"the ledger of this folder holds a run of {self.product} already, and its state is gone; "
                "start a new run in a new folder, which is charged in full."
            )


def _changed_when(inputs: Iterable[Path | str]) -> dict[str, list[int]]:
    """Return when the files of an input were changed last, in nanoseconds: by name, nothing of their content.

    Several files may have one name, in folders of their own. Files that are not there are left out, and of an
    address the text alone is known.
    """
    found: dict[str, list[int]] = {}
    for given in inputs:
        if isinstance(given, str):
            found[given] = []
            continue
        files = sorted(given.rglob("*")) if given.is_dir() else [given]
        for path in files:
            if path.is_file():
                found.setdefault(path.name, []).append(path.stat().st_mtime_ns)
    return found


def left_out(out: Path, state: RunState) -> str:
    """Say how the measurements that a run left out can still be had; nothing where it left none out."""
    if state.known.get("measurements") != "used":
        return ""
    custody = state.known.get("key")
    stored = (out / "confidential" / "keys" / f"{state.product}.key").exists()
    # A run that died at its end has its key until the next command destroys it.
    stored = stored and (state.ending is None or custody != KeyCustody.DESTROYED)
    if stored or state.seed is not None or custody == KeyCustody.ELSEWHERE:
        source = " --key-command COMMAND" if state.seed is None else f" --seed {state.seed}"
        if stored:
            source = " --ask-passphrase" if custody == KeyCustody.SEALED else ""
        return (
            f"opendas measure RUN.toml --out {out} --resume{source} writes the measurements that it left "
            "out, with the same noise and no further charge. "
        )
    if custody == KeyCustody.DESTROYED:
        return "The measurements that it left out are lost, since its key is destroyed. "
    return "The measurements that it left out can be written only with its key, which is not in this folder. "


def runs_beside(out: Path, product: str, inputs: Iterable[Path | str]) -> dict[Path, RunState]:
    """Return the runs of a product, in output folders beside `out`, that spent budget on the same files.

    - `out`: output folder, perhaps a new one.
    - `inputs`: files are the same where names and times of change are.
    """
    now, found = _changed_when(inputs), {}
    for path in sorted(out.absolute().parent.glob(f"*/confidential/inputs/{product}.json")):
        folder = path.parents[2]
        if not now or folder == out.absolute():
            continue
        try:
            read, state = json.loads(path.read_bytes()), read_state(folder / "state" / product / "run.json")
        except (OSError, ValueError, PrivacyError):
            continue  # another user's, or damaged: nothing is known of it
        if read == now and state.seed is None:
            found[folder] = state
    return found


@contextmanager
def open_act(
    space: Workspace, product: str, command: str, options: O, workers: int | None = None
) -> Iterator[Act[O]]:
    """Begin an attempt and keep its log; an error that ends it is the log's last line.

    - `space`: open, so that nobody else writes the log.
    - `command`: ``run``, ``measure``, ``estimate`` or ``phsafe``.
    """
    issue_date()  # what a certificate could not say is found out before anything is spent
    with RunLog(log_path(space.confidential, product)) as log:
        log.start(
            product=product,
            command=command,
            workers=workers,
            engine=options.engine,
            resume=options.resume,
            seeded=options.seed is not None,
        )
        yield Act(space, product, options, Clock(log.step), log)
