"""What runs of several lengths cost on a spot machine, by prices that AWS has recorded, and how often they are killed.

    python -m bench.spot_history history.json --bid 0.958 --list 0.958 --json spot_history.json

The file is an answer of `aws ec2 describe-spot-price-history`. A run is begun at 1,000 moments of it, has rounds of ten
seconds, and loses the round under way, and 15 s of starts, with each kill: where a price is above the bid.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from statistics import fmean

from bench import harness
from bench.harness import Row
from marless.cost.billing.machines import MICRO
from marless.cost.billing.spot import BEGINNINGS, SpotSeries
from marless.cost.billing.spot_files import read_spot_prices
from marless.cost.pricing import usd

LENGTHS = {"1 min": 60, "10 min": 600, "1 h": 3600, "10 h": 36_000}
"""Seconds of undisturbed work."""
ROUND_S, START_S, MINIMUM_S = 10, 15, 60


def row(name: str, length_s: int, series: SpotSeries, list_usd_h: float) -> Row:
    """One line of the table: means over all beginnings from which the series is long enough."""
    first_us, last_us = series.rows[0].time_us, series.rows[-1].time_us
    begins_us = (first_us + (last_us - first_us) * number // BEGINNINGS for number in range(BEGINNINGS))
    rounds_us = [ROUND_S * MICRO] * (length_s // ROUND_S)
    runs = [
        series.run(rounds_us, begin_us, restart_us=START_S * MICRO, minimum_s=MINIMUM_S)
        for begin_us in begins_us
        if begin_us + 2 * length_s * MICRO < last_us
    ]
    on_demand = list_usd_h * length_s / 3600
    return {
        "run": name,
        "begun": len(runs),
        "cost / at list price": f"{fmean(usd(each.picos) for each in runs) / on_demand:.2f}",
        "killed at least once": f"{fmean(each.kills > 0 for each in runs):.1%}",
        "kills": f"{fmean(each.kills for each in runs):.2f}",
        "lost, s": f"{fmean(each.lost_us for each in runs) / MICRO:.1f}",
        "longer by": f"{fmean(each.ended_us for each in runs) / (length_s * MICRO) - 1:.1%}",
    }


def main() -> None:
    """Print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("file", type=Path, help="prices of one machine, as AWS tells them")
    parser.add_argument("--bid", type=float, required=True, help="US dollars an hour, above which it is killed")
    parser.add_argument("--list", type=float, required=True, help="its list price, in US dollars an hour")
    args = parser.parse_args()
    series = read_spot_prices(args.file, Decimal(repr(args.bid)))
    rows = [row(name, length_s, series, args.list) for name, length_s in LENGTHS.items()]
    harness.report("spot_history", harness.machine(), rows, {"prices": len(series.rows)}, args.json)


if __name__ == "__main__":
    main()
