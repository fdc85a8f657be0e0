"""The generated pages are those in the tree."""

from millstream.testing import reference_docs


def test_error_and_settings_pages_are_up_to_date() -> None:
    assert reference_docs.main(["--check"]) == 0, "run: python -m millstream.testing.reference_docs"


def test_every_code_is_on_the_error_page() -> None:
    assert "| `COMMIT_CONFLICT` |" in reference_docs.errors_page()
