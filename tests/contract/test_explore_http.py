"""The pages of ``opendas explore`` over HTTP: answers, messages at fields, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from support.asgi import Client
from support.mini import write_mini
from support.seeds import examples

from opendas.cli.main import cli
from opendas.explore.app import make_app
from opendas.explore.budget_page import budget_state
from opendas.explore.household_page import household_state
from opendas.explore.households import production
from opendas.explore.page import read_link, write_link
from opendas.explore.session import Session, make_session
from opendas.explore.subjects import stand_in
from opendas.runs.context.run import load

HOST = "127.0.0.1:8321"
SHARED = Session()


@pytest.fixture(name="session", scope="module")
def _session() -> Session:
    return Session()


@pytest.fixture(name="client")
def _client(session: Session) -> Client:
    return served(session)


def served(session: Session) -> Client:
    """The pages of a session."""
    return Client(make_app(session, frozenset({HOST})), f"http://{HOST}")


def fields(key: str = "state-persons") -> dict[str, str]:
    """The form of a subject as it starts."""
    return {"subject": key, "plans": "1", **budget_state(stand_in(key)).fields()}


def test_the_first_page_leads_to_the_budget_and_shows_every_field(client: Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert urlsplit(str(page.url)).path == "/budget"
    assert 'value="293764/114921"' in page.text
    assert "rho 2.556, epsilon 17.14 (cks)" in page.text


def test_a_form_is_answered_without_a_script_as_well(client: Client) -> None:
    page = client.get("/budget", params=fields() | {"a.total": "1/2"})
    assert page.status_code == 200
    assert "rho 0.5" in page.text


def test_a_form_is_answered_as_it_is_typed(client: Client) -> None:
    answer = client.post("/budget/answers", data=fields() | {"a.total": "1"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["errors"] == {}
    assert body["status"].startswith("rho 1, epsilon")
    assert "<table" in body["answers"]
    state = read_link(body["packed"])
    assert state["plans"][0]["total"] == "1"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("a.total", "many", "'many' is not a number"),
        ("a.total", "-1", "negative"),
        ("a.total", "0", "nothing could be measured"),
        ("a.total", "", "Give a number"),
        ("a.total", "1e400", "protects nobody"),
        ("a.delta", "1", "between 0 and 1"),
        ("a.delta", "0", "between 0 and 1"),
        ("a.mechanism", "dice", "'dice' is unknown"),
        ("a.neighbours", "next door", "is unknown"),
        ("a.neighbours", "unbounded", "Choose bounded"),
        ("a.l1", "1/0", "is not a number"),
        ("a.l1", "nan", "is not a number"),
        ("a.q0.1", "-1/2", "negative"),
        ("a.l1", "1e1000", "a part of 1"),
        ("a.q1.10", "1e-30", "too little"),
    ],
)
def test_what_is_wrong_is_said_at_the_field(client: Client, field: str, value: str, message: str) -> None:
    answer = client.post("/budget/answers", data=fields() | {field: value})
    assert answer.status_code == 422
    errors = answer.json()["errors"]
    group = field.rpartition(".")[0] if field.count(".") == 2 else re.sub(r"\d+$", "", field)
    assert message in errors.get(field, errors.get(group, ""))
    page = client.get("/budget", params=fields() | {field: value})
    assert page.status_code == 422
    assert "Traceback" not in page.text
    if field in errors:
        assert re.search(rf'id="{re.escape(field)}"[^>]*aria-invalid="true"', page.text)


def test_shares_that_miss_one_say_by_how_much_and_can_be_rescaled(client: Client) -> None:
    form = fields() | {"a.l0": "0.5", "a.l1": "0.2", "a.l2": "0.2", "a.l3": "0.05", "a.l4": "0"}
    body = client.post("/budget/answers", data=form).json()
    assert body["sums"]["a.l"] == {"text": "Sum: 0.95, that is 0.05 too little.", "off": True}
    assert "0.05 too little" in body["errors"]["a.l"]
    mended = client.post("/budget/answers", data=form | {"action": "rescale:a.l"})
    assert mended.status_code == 200
    assert mended.json()["fields"]["a.l0"] == "10/19"


def test_the_others_give_way_when_a_share_is_moved(client: Client) -> None:
    body = client.post("/budget/answers", data=fields() | {"a.l4": "0.5", "action": "move:a.l4"}).json()
    assert body["errors"] == {}
    assert body["sums"]["a.l"]["off"] is False
    assert set(body["fields"]) == {"a.l0", "a.l1", "a.l2", "a.l3"}


def test_a_link_brings_the_same_state_back(client: Client) -> None:
    form = fields() | {
        "plans": "2",
        "a.total": "1",
        **{f"b.{name}": text for name, text in budget_state(stand_in("state-persons")).plans[0].items()},
    }
    first = client.post("/budget/answers", data=form).json()
    page = client.get("/budget", params={"s": first["packed"]})
    assert page.status_code == 200
    assert 'id="a.total" name="a.total" value="1"' in page.text
    assert 'id="b.total" name="b.total" value="293764/114921"' in page.text
    assert "Plan B" in page.text


@pytest.mark.parametrize("text", ["", "AAAA", "%%%", "eJw", "x" * 60_100, write_link({"a": 1})])
def test_a_damaged_link_is_said_and_the_page_starts_anew(client: Client, text: str) -> None:
    page = client.get("/budget", params={"s": text})
    assert page.status_code == 422
    assert re.search(
        r'role="alert">(The link or kept state is damaged|This is not a state that opendas explore wrote)',
        page.text,
    )


def test_a_state_of_another_product_is_refused_where_it_was_pasted(client: Client) -> None:
    state = budget_state(stand_in("us-units")).to_document() | {"subject": "us-persons"}
    page = client.post("/open", data={"text": json.dumps(state)})
    assert page.status_code == 422
    assert "This is a plan of the product pl94-units; this page explores pl94-persons." in page.text
    assert 'id="text-error">' in page.text


def test_a_plan_is_given_as_a_run_file_with_exact_shares(client: Client) -> None:
    answer = client.get("/budget/plan.toml", params=fields() | {"action": "save:a"})
    assert "attachment" in answer.headers["content-disposition"]
    plan = tomllib.loads(answer.text)
    assert plan["budget"]["rho"] == "293764/114921"
    assert plan["budget"]["geolevels"]["block"] == "165/4099"
    assert plan["run"]["product"] == "pl94-persons"


def test_a_run_file_that_was_saved_can_be_opened_again(client: Client) -> None:
    form = fields("us-persons") | {"a.total": "1/3"}
    text = client.get("/budget/plan.toml", params=form | {"action": "save:a"}).text
    page = client.post("/open", data={"text": text}, follow=False)
    assert page.status_code == 303
    state = read_link(parse_qs(urlsplit(page.headers["location"]).query)["s"][0])
    assert state["plans"][0]["total"] == "1/3"
    assert state["plans"][0]["l0"] == "104/4099"


def test_a_kept_state_can_be_opened_again(client: Client) -> None:
    packed = client.post("/budget/answers", data=fields()).json()["packed"]
    kept = client.get("/budget/state.json", params={"s": packed})
    page = client.post("/open", data={"text": kept.text}, follow=False)
    assert page.headers["location"] == f"/budget?s={packed}"


def test_nothing_is_asked_of_anybody_else(client: Client) -> None:
    page = client.get("/budget")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "unsafe" not in policy
    fetched = re.findall(r'(?:src|href|action)="([^"]*)"', page.text)
    assert fetched
    assert not [address for address in fetched if re.match(r"(?:[a-z]+:)?//", address)]
    assert "style=" not in page.text
    for address in fetched:
        if address.startswith("/static/"):
            file = client.get(address)
            assert file.status_code == 200
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", file.text)


@pytest.mark.parametrize(
    "host", ["evil.example:8321", "127.0.0.1", "127.0.0.1:80", "localhost.evil.example:8321"]
)
def test_another_host_name_is_refused(client: Client, host: str) -> None:
    answer = client.get("/budget", headers={"host": host})
    assert answer.status_code == 421
    assert "rho" not in answer.text


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_a_form_of_another_page_is_refused(client: Client, headers: dict[str, str]) -> None:
    assert client.post("/budget/answers", data=fields(), headers=headers).status_code == 403


def test_a_link_may_lead_here_and_nothing_else_from_elsewhere(client: Client) -> None:
    elsewhere = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/budget", headers=elsewhere | {"sec-fetch-dest": "document"}).status_code == 200
    for kind in ("iframe", "image", "script", "empty"):
        answer = client.get("/budget", headers=elsewhere | {"sec-fetch-dest": kind})
        assert answer.status_code == 403
        assert "rho" not in answer.text


def test_a_plan_is_written_only_where_the_command_line_said(tmp_path: Path) -> None:
    form = fields() | {"action": "write:a"}
    session = Session()
    mine = {"cookie": f"opendas-explore-8321={session.token}"}
    assert served(session).post("/budget/write", data=form, headers=mine).status_code == 404
    target = tmp_path / "plan.toml"
    session = Session(save_to=target)
    client = served(session)
    assert client.get("/budget/write", params=form).status_code == 405
    for token in ("", "wrong", "\u00e9"):
        opened = client.get("/", params={"token": token}, follow=False)
        assert "set-cookie" not in opened.headers
    assert client.post("/budget/write", data=form).status_code == 403
    wrong = {"cookie": "opendas-explore-8321=wrong"}
    assert client.post("/budget/write", data=form, headers=wrong).status_code == 403
    assert not target.exists()
    opened = client.get("/", params={"token": session.token}, follow=False)
    cookie = opened.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/budget/write"} <= set(cookie.split("; "))
    mine = {"cookie": cookie.partition(";")[0]}
    assert client.post("/budget/write", data=form, headers=mine).status_code == 200
    assert tomllib.loads(target.read_text())["budget"]["rho"] == "293764/114921"


@pytest.mark.parametrize("name", ["nothing", "..%2Fapp.py", "%2e%2e/guard.py"])
def test_only_files_of_the_page_are_given(client: Client, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404


def households(**changes: str) -> dict[str, str]:
    """The form of the page of household tables as it starts."""
    return {"plans": "1", **household_state(production("budget")).fields(), **changes}


def test_household_tables_are_answered_as_they_are_typed(client: Client) -> None:
    answer = client.post("/phsafe/answers", data=households())
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == "rho 1.257 unbounded, 2.515 bounded (paper bound)."
    assert "1.325952" in body["answers"]
    page = client.get("/phsafe", params={"s": body["packed"]})
    assert page.status_code == 200
    assert 'value="0.662976"' in page.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("a.tau.PH1_num", "ten"),
        ("a.v.PH2.2", "-1"),
        ("a.v.PH2.2", "1/3"),
        ("a.definition", "guess"),
        ("a.states", "44, 99"),
        ("a.delta", "0"),
        ("a.sensitivity", "<b>"),
    ],
)
def test_what_is_wrong_with_household_tables_is_said_at_the_field(
    client: Client, field: str, value: str
) -> None:
    answer = client.post("/phsafe/answers", data=households(**{field: value}))
    assert answer.status_code == 422
    assert list(answer.json()["errors"]) == [field]
    page = client.get("/phsafe", params=households(**{field: value}))
    assert page.status_code == 422
    assert re.search(rf'id="{re.escape(field)}"[^>]*aria-invalid="true"', page.text)
    assert "<b>" not in page.text


def test_a_configuration_is_given_and_can_be_opened_again(client: Client) -> None:
    answer = client.get("/phsafe/config.json", params=households(action="save:a"))
    assert "attachment" in answer.headers["content-disposition"]
    assert json.loads(answer.text)["privacy_budget"]["PH3"]["state_A-G"] == 0.662976
    page = client.post("/open", data={"text": answer.text}, follow=False)
    assert page.headers["location"].startswith("/phsafe?s=")
    assert client.get(page.headers["location"]).status_code == 200


def test_a_plan_that_is_not_complete_is_not_given(client: Client) -> None:
    for path, form in (
        ("/budget/plan.toml", fields() | {"a.total": "", "action": "save:a"}),
        ("/budget/plan.toml", fields() | {"action": "save:b"}),
        ("/phsafe/config.json", households(**{"a.tau.PH2": "", "action": "save:a"})),
    ):
        answer = client.get(path, params=form)
        assert answer.status_code == 422
        assert "The plan is not complete yet." in answer.text


def test_a_start_that_is_not_there_is_said(client: Client) -> None:
    for path in (
        "/budget?start=mars:",
        "/budget?start=us-persons:none",
        "/phsafe?start=none",
        "/budget?subject=x",
    ):
        answer = client.get(path)
        assert answer.status_code == 422
        assert 'role="alert"' in answer.text


def test_too_much_is_refused(client: Client) -> None:
    many = {f"x{i}": "1" for i in range(3000)}
    assert client.post("/budget/answers", data=many).status_code == 413
    assert client.post("/open", data={"text": "x" * 3_000_000}).status_code == 413
    assert client.post("/budget/answers", data={"subject": "mars"}).status_code == 422


@pytest.mark.parametrize("path", ["/budget", "/phsafe"])
@pytest.mark.parametrize("name", ["a.total", "a.mechanism", "a.l0", "text", "s", "action", "start", "a.mode"])
def test_what_was_typed_is_shown_as_text_only(client: Client, path: str, name: str) -> None:
    answer = client.get(path, params={name: '"><script>alert(1)</script>'})
    assert "<script>alert" not in answer.text


def test_what_the_exact_curve_does_not_reach_is_said_at_delta(client: Client) -> None:
    answer = client.post("/budget/answers", data=fields() | {"a.delta": "1e-200", "action": "exact"})
    assert answer.status_code == 422
    assert "use the conversions" in answer.json()["errors"]["a.delta"]


@pytest.mark.parametrize("total", ["1e15", "1e9", "1000"])
@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace"])
def test_noise_that_nobody_will_see_is_answered(client: Client, total: str, mechanism: str) -> None:
    form = fields() | {"a.total": total, "a.mechanism": mechanism}
    assert client.post("/budget/answers", data=form).status_code == 200


def test_the_exact_epsilon_is_worked_out_when_it_is_asked_for(client: Client) -> None:
    body = client.post("/budget/answers", data=fields() | {"action": "exact"}).json()
    assert re.search(
        r"exact epsilon of the composed noise lies between 16\.\d\d and 16\.\d\d", body["answers"]
    )
    assert "composed noise lies" not in client.post("/budget/answers", data=fields()).json()["answers"]


def test_a_run_is_tried_on_synthetic_records_when_it_is_asked_for(tmp_path: Path) -> None:
    session = make_session(write_mini(tmp_path))
    form = {"subject": "run", "plans": "1", **budget_state(session.budgets.first).fields()}
    client = served(session)
    body = client.post("/budget/answers", data=form | {"action": "tried"}).json()
    assert re.search(r'id="tried-caption".*Mean absolute error of released counts', body["answers"])
    body = client.post("/budget/answers", data=form).json()
    assert 'value="tried"' in body["answers"]
    assert "tried-caption" not in body["answers"]
    body = client.post("/budget/answers", data=fields() | {"action": "tried"}).json()
    assert "tried" not in body["answers"]  # of published numbers alone there is no frame


NUMBERS = (
    "",
    "0",
    "-0",
    "1/0",
    "1e9",
    "1e-9",
    "1e-300",
    "1e2000",
    "0." + "9" * 99,
    "1/3",
    "nan",
    "inf",
    "2",
    "1 %",
)
WORDS = ("\x00", "\u0663", "%", "a.l0", "{}", "<")
NASTY = st.one_of(st.text(max_size=40), st.sampled_from(NUMBERS + WORDS))
ACTIONS = st.sampled_from(
    ("", "compare", "single", "swap", "move:a.l0", "move:a.q1.2", "rescale:a.q0", "target:a", "budget:b")
)


@settings(max_examples=examples(30))
@given(st.data())
def test_whatever_is_sent_is_answered_or_refused(data: st.DataObject) -> None:
    """No request of any content fails inside: it is answered, or it is told what is wrong."""
    client = served(SHARED)
    page, form = data.draw(st.sampled_from([("budget", fields()), ("phsafe", households())]))
    names = st.sampled_from([*form, "plans", "s", "start", "a.mode", "a.q9.9", "b.total"])
    changed = data.draw(st.dictionaries(names, NASTY, max_size=4))
    sent = form | {"action": data.draw(ACTIONS)} | changed
    for answer in (client.post(f"/{page}/answers", data=sent), client.get(f"/{page}", params=sent)):
        assert answer.status_code in (200, 422), sent
        assert "internal error" not in answer.text


STAYS = "patient_id,hospital,ward,age,severity,weight\n" + "".join(
    f"{1000 + n // 2},H{n % 6 // 2},W{n % 6},{n * 7 % 95},{('low', 'high')[n // 7 % 2]},{n % 7}.5\n"
    for n in range(400)
)


def table_client(folder: Path, text: str) -> tuple[Client, dict[str, str]]:
    """The page of a table, and the header of the browser that opened the printed address."""
    (folder / "stays.csv").write_text(text)
    session = make_session(folder / "stays.csv", folder / "files")
    client = served(session)
    opened = client.get("/", params={"token": session.token}, follow=False)
    assert opened.headers["location"] == "/table"
    cookie = opened.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/table"} <= set(cookie.split("; "))
    return client, {"cookie": cookie.partition(";")[0]}


def chosen(page: str) -> dict[str, str]:
    """The form of a table's page, with what is selected in it."""
    uses = re.findall(r'<select name="(use\.\d+)".*?<option selected>([a-z ]+)</option>', page)
    bins = re.findall(r'name="(bins\.\d+)" value="([^"]*)"', page)
    return {**dict(uses), **dict(bins), "unit": re.findall(r'name="unit" value="([^"]*)"', page)[0]}


def test_a_table_is_shown_and_its_files_are_those_of_init_table(tmp_path: Path) -> None:
    client, mine = table_client(tmp_path, STAYS)
    page = client.get("/table", headers=mine)
    assert page.status_code == 200
    form = chosen(page.text)
    assert list(form.values()) == [
        "not used",
        "place",
        "place",
        "attribute",
        "attribute",
        "not used",
        "0, 5, 18, 25, 35, 45, 55, 65, 75, 85",
        "patient",
    ]
    assert "0-4, 5-17, 18-24" in page.text  # proposed classes of ages
    assert "it seems to be a weight" in page.text
    assert "some have several rows, of which the run file counts at most 3" in page.text
    assert not (tmp_path / "files").exists()
    # the answers: no ages; one row is a stay
    form |= {"use.3": "not used", "unit": "stay", "action": "look"}
    seen = client.post("/table", data=form, headers=mine)
    assert "severity (2 levels)" in seen.text
    assert "age (" not in seen.text
    assert client.get("/table", params=form | {"action": "write"}, headers=mine).status_code == 200
    assert not (tmp_path / "files").exists(), "a link writes nothing"
    done = client.post("/table", data=form | {"action": "write"}, headers=mine)
    assert done.status_code == 200
    assert "stays-run.toml --read-records --records " in done.text
    command = ["init", "table", str(tmp_path / "stays.csv"), "--to", str(tmp_path / "by-command")]
    command += ["--geography", "hospital,ward", "--attributes", "severity", "--unit", "stay"]
    assert CliRunner().invoke(cli, command, obj={}).exit_code == 0
    written = {path.name: path.read_text() for path in (tmp_path / "files").iterdir()}
    assert written == {path.name: path.read_text() for path in (tmp_path / "by-command").iterdir()}
    assert set(written) == {"stays-product.toml", "stays-run.toml", ".gitignore"}
    assert load(tmp_path / "files" / "stays-run.toml", read_records=True).product.schema.names == (
        "severity",
    )
    again = client.post("/table", data=form | {"action": "write"}, headers=mine)
    assert again.status_code == 422
    assert "already exist. Nothing was overwritten" in again.text


def test_classes_of_numbers_are_edited_as_the_questions_of_init_table_ask_for_them(tmp_path: Path) -> None:
    client, mine = table_client(tmp_path, STAYS)
    form = chosen(client.get("/table", headers=mine).text) | {"bins.3": "0 18,65, 80.5"}
    seen = client.post("/table", data=form, headers=mine)
    assert "0 to below 18, 18 to below 65, 65 to below 80.5, 80.5+" in seen.text
    assert chosen(seen.text)["bins.3"] == "0, 18, 65, 80.5"
    assert 'id="bins.3-error" hidden' in seen.text
    assert client.post("/table", data=form | {"action": "write"}, headers=mine).status_code == 200
    command = ["init", "table", str(tmp_path / "stays.csv"), "--to", str(tmp_path / "by-command")]
    answers = "\n\n\n65,18\n10\n0,18,65,80.5\n\n"  # two that cannot be used are asked again
    asked = CliRunner().invoke(cli, [*command, "--interactive"], obj={}, input=answers)
    assert asked.exit_code == 0, asked.exception
    assert "18 follows 65" in asked.stderr
    assert "Some numbers lie below 10" in asked.stderr
    written = {path.name: path.read_text() for path in (tmp_path / "files").iterdir()}
    assert written == {path.name: path.read_text() for path in (tmp_path / "by-command").iterdir()}
    run = load(tmp_path / "files" / "stays-run.toml", read_records=True)
    assert run.resolved.reader.bins == {"age": (0, 18, 65, 80.5)}
    assert run.product.schema.attributes[0].levels == (
        "0 to below 18",
        "18 to below 65",
        "65 to below 80.5",
        "80.5+",
    )


def test_what_is_wrong_with_classes_is_said_at_their_field_and_nothing_is_written(tmp_path: Path) -> None:
    client, mine = table_client(tmp_path, STAYS)
    form = chosen(client.get("/table", headers=mine).text)
    for typed, message in (
        ("0, 18 years", "&#39;years&#39; is not a number"),
        ("0, 65, 18", "18 follows 65: write the numbers in ascending order, each once."),
        ("0, 0", "0 follows 0"),
        ("5, 18", "Some numbers lie below 5"),
        ("0, 0.1234567890123", "0.1234567890123 has more than 12 digits"),
        (" ".join(map(str, range(1001))), "1,001 classes: at most 1,000 are allowed."),
        ("nan", "&#39;nan&#39; is not a number"),
        ('"><script>', "&#39;&#34;&gt;&lt;script&gt;&#39; is not a number"),
    ):
        answer = client.post("/table", data=form | {"bins.3": typed, "action": "write"}, headers=mine)
        assert answer.status_code == 422
        assert f'id="bins.3-error">{message}' in answer.text
        assert "1 entry cannot be used yet." in answer.text
        assert "<script>" not in answer.text
        assert unescape(chosen(answer.text)["bins.3"]) == typed
        assert "Write product file" not in answer.text
        assert not (tmp_path / "files").exists()
    emptied = client.post("/table", data=form | {"bins.3": " "}, headers=mine)
    assert chosen(emptied.text) == form
    # of a column that is not used, what stands there is of no account
    unused = client.post("/table", data=form | {"bins.3": "x", "use.3": "not used"}, headers=mine)
    assert unused.status_code == 200
    assert "bins.3" not in chosen(unused.text)


def test_what_is_wrong_with_the_uses_of_columns_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    client, mine = table_client(tmp_path, STAYS)
    form = chosen(client.get("/table", headers=mine).text)
    for change, message in (
        ({"use.1": "not used", "use.2": "not used"}, "No column is used as place"),
        ({"use.3": "not used", "use.4": "not used"}, "No column is used as attribute"),
        ({"use.0": "count", "use.5": "count"}, "patient_id, weight are used as count"),
        ({"use.4": "place"}, "one ward lies in two of severity"),
    ):
        answer = client.post("/table", data=form | change | {"action": "write"}, headers=mine)
        assert message in answer.text
        assert answer.status_code == 422
        assert [chosen(answer.text)[name] for name in change] == list(change.values())
        assert not (tmp_path / "files").exists()


def test_a_table_with_a_column_for_each_count_is_written_as_a_long_one(tmp_path: Path) -> None:
    rows = "".join(f"{n:05d},{n},{2 * n + 1},{7}\n" for n in range(40))
    client, mine = table_client(tmp_path, "tract,young,middle,old\n" + rows)
    page = client.get("/table", headers=mine)
    assert page.status_code == 422
    assert 'name="melt" value="all"' in page.text
    done = client.post("/table", data={"melt": "young..old", "action": "melt"}, headers=mine)
    assert "3 columns became labels of category" in done.text
    assert (tmp_path / "files" / "stays-long.csv").read_text().count("\n") == 121
    assert load(tmp_path / "files" / "stays-run.toml", read_records=True).product.name == "stays"


def test_a_table_is_shown_to_the_browser_of_the_printed_address_alone(tmp_path: Path) -> None:
    client, mine = table_client(tmp_path, STAYS.replace("severity", "<b>severity"))
    wrong = {"cookie": "opendas-explore-8321=wrong"}
    for headers in ({}, wrong):
        for answer in (client.get("/table", headers=headers), client.post("/table", headers=headers)):
            assert answer.status_code == 403
            assert "severity" not in answer.text
    for path in ("/budget", "/phsafe"):
        assert "severity" not in client.get(path, headers=mine).text
    assert "&lt;b&gt;severity" in client.get("/table", headers=mine).text
    assert served(Session()).get("/table").status_code == 404
