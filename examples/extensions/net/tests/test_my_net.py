from marless.learning.nets.contract import check_net


def test_it_keeps_the_contract() -> None:
    check_net("my_net", hidden=(8, 8, 8))
