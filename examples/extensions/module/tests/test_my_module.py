from marless.learning.nets.contract import check_net


def test_it_keeps_the_contract() -> None:
    check_net("module/my_module", hidden=(8, 8, 8))
