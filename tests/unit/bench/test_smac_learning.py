"""The program that measures learning on StarCraft's embedded engine: its jobs and its table."""

from bench.smac_learning import ALGORITHMS, EXAMPLES, TARGETS, TUNED, Course, Point, document, row
from marless.core.documents import from_yaml
from marless.jobs import spec


def course(*won: float) -> Course:
    points = tuple(Point(1000 * (k + 1), 10.0 * (k + 1), each, 20 * each) for k, each in enumerate(won))
    return Course(points, 10.0 * len(won), 5.0 * len(won))


def test_all_jobs_are_valid_and_keep_the_sections_of_the_example() -> None:
    for smac_map in TARGETS:
        for algorithm in ALGORITHMS:
            job = spec.parse({"name": "learning", **document(smac_map, algorithm, seed=2)}, "here")
            assert job.seed == 2
            assert job.env.name == f"smac/{smac_map}"
            assert job.algorithm.name == algorithm


def test_the_algorithm_of_the_example_has_its_settings_and_others_those_of_the_program() -> None:
    own, tuned, other = (document("3s5z", algorithm, 0) for algorithm in ("mappo", "qmix", "vdn"))
    example = from_yaml(EXAMPLES / "smac_3s5z.yaml")
    assert isinstance(example, dict)
    assert (own["algorithm"], own["stop"]) == (example["algorithm"], example["stop"])
    assert "model" not in own
    assert tuned["model"] == TUNED["3s5z", "qmix"]["model"]
    assert other["algorithm"] == {"name": "vdn", **ALGORITHMS["vdn"]["algorithm"]}
    assert other["stop"] == ALGORITHMS["vdn"]["stop"]


def test_a_row_says_how_many_seeds_won_often_enough_and_when() -> None:
    found = row("3s5z", "qmix", [course(0.1, 0.7, 0.5), course(0.2, 0.3, 0.4)])
    assert found["won at the end, %"] == "50 / 40"
    assert found["seeds there"] == "1 of 2"
    assert found["after env steps"] == {"median": 2000, "min": 2000, "max": 2000}
