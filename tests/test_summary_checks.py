"""What a summary may not claim: quotations that nobody wrote, and requests that no user made."""

import pytest

from haystack_compaction.prompts import UNCONFIRMED_MARK
from haystack_compaction.summaries.checks import Checked, checked, confirmed_words

SAID = "Please rename the module to billing_core and keep the old tests. The café's sign says “Fermé le lundi”."


def check(summary: str, *, words: str = SAID, user_words: str | None = None) -> Checked:
    return checked(summary, words=words, user_words=words if user_words is None else user_words)


class TestQuotations:
    @pytest.mark.parametrize(
        "summary",
        [
            '- Asked to "rename the module" first.',
            '- Asked to "Rename  the module to billing_core."',
            '- The sign: "Fermé le lundi".',
            "- The sign: “fermé le lundi”.",
            '- It was "rename the module ... keep the old tests".',
            "- It's the café's sign; don't touch it.",
            '- A table 6" wide.',
        ],
    )
    def test_what_was_written_keeps_its_marks(self, summary: str) -> None:
        assert check(summary) == Checked(summary)

    @pytest.mark.parametrize(
        ("summary", "plain"),
        [
            ('- Said "delete everything" twice.', "- Said delete everything twice."),
            ("- Said „alles löschen“ twice.", "- Said alles löschen twice."),
            ("- Said “delete everything”.", "- Said delete everything."),
            ("- Dit « tout effacer ».", "- Dit  tout effacer ."),
            ("- 「全部削除」と書いた", "- 全部削除と書いた"),
            ('- "rename the module ... drop the tests"', "- rename the module ... drop the tests"),
        ],
    )
    def test_what_stands_nowhere_loses_them(self, summary: str, plain: str) -> None:
        assert check(summary) == Checked(plain, num_unquoted=1)

    def test_only_the_false_ones_are_touched(self) -> None:
        summary = '- "keep the old tests" and "drop the old tests"'
        assert check(summary).text == '- "keep the old tests" and drop the old tests'


class TestClaims:
    @pytest.mark.parametrize(
        "summary",
        [
            "- The user asked for a new name of the module.",
            "- User wants tests kept.",
            "- The user prefers that existing testing stays; the module is renamed.",
            "- The parser was fixed, which no one had asked for.",
            "- The tool said that the disk is full.",
        ],
    )
    def test_an_honest_paraphrase_stays(self, summary: str) -> None:
        assert check(summary) == Checked(summary)

    @pytest.mark.parametrize(
        "summary",
        [
            "- The user asked for a database migration.",
            "- The customer approved payment by invoice.",
            "- User: I approve.",
            "- The user agreed.",
            "- Der Nutzer bat um eine Datenbankmigration.",
            "- L'utilisateur a demandé une migration complète.",
            "- El usuario pidió borrar facturas.",
        ],
    )
    def test_a_claim_that_shares_nothing_with_any_user_message_is_marked(self, summary: str) -> None:
        assert check(summary) == Checked(f"{summary} {UNCONFIRMED_MARK}", num_unconfirmed=1)

    def test_only_the_sentence_that_claims_it_is_marked(self) -> None:
        summary = "- The user asked to rename the module. The user wants a pony. Both were noted."
        text = check(summary).text
        assert text == (
            f"- The user asked to rename the module. The user wants a pony. {UNCONFIRMED_MARK} Both were noted."
        )

    def test_scripts_without_blanks_are_compared_by_pairs_of_signs(self) -> None:
        said = "请把模块改名为计费核心"
        assert check("- 用户要求模块改名。", words=said).num_unconfirmed == 0
        assert check("- 用户要求删除数据库。", words=said).num_unconfirmed == 1

    def test_nothing_is_marked_where_the_summary_is_in_another_script(self) -> None:
        assert check("- The user asked for a new name.", words="请把模块改名为计费核心").num_unconfirmed == 0

    def test_a_tools_words_confirm_nothing(self) -> None:
        result = check("- The user asked for a migration.", words=f"{SAID} migration", user_words=SAID)
        assert result.num_unconfirmed == 1

    def test_a_claim_is_not_confirmed_by_the_summary_that_marked_it(self) -> None:
        earlier = f"- The user wants a pony. {UNCONFIRMED_MARK}\n- The module is renamed."
        assert (
            check("- The user wants a pony.", words=earlier, user_words=confirmed_words(earlier)).num_unconfirmed == 1
        )

    def test_a_mark_is_not_set_twice(self) -> None:
        once = check("- The user wants a pony.").text
        assert check(once) == Checked(once)
