from marless.learning.similarity.contract import check_similarity

from my_similarity.similarity import MySimilarity, MySimilarityConfig


def test_it_keeps_the_contract() -> None:
    check_similarity(MySimilarity(MySimilarityConfig()))
