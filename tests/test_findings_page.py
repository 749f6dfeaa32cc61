"""The page of findings says what the codes say."""

from codes_page import PAGE, page_with_table


def test_the_table_of_codes_is_made_from_the_codes():
    text = PAGE.read_text()
    assert text == page_with_table(text), "run: python tests/support/codes_page.py"
