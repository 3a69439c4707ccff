"""A stand-in for StarCraft II: takes its arguments, and serves battles of another backend over its real protocol.

`python -m tests.plugins.smac.starcraft.stand_in ARGUMENTS OF THE GAME`; `$SC2PATH/faults.json` says what goes
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
from s2clientprotocol import common_pb2, sc2api_pb2
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from marless_smac.engine import EmbeddedBattles
from marless_smac.kinds import FACTS, LOOPS
from marless_smac.maps import FIXED_ACTIONS, find
from marless_smac.starcraft import orders

STRANGE = 1900
"""Added to the order of an ally's type: maps number their own units as they like."""
RACES = {"T": common_pb2.Terran, "P": common_pb2.Protoss, "Z": common_pb2.Zerg}


class DroppedError(Exception):
    """The connection ends without a word."""


def dropped():
    raise DroppedError


class RefusalError(Exception):
    """What the game answers with an error."""


class StandIn:
    def __init__(self, root: Path, faults: dict[str, object]) -> None:
        self.root, self.faults = root, faults
        self.status = sc2api_pb2.launched
        self.map, self.battles = None, None
        self.battle = self.steps = self.waited = 0
        self.pending: dict[int, int] = {}

    def answer(self, data: bytes) -> bytes | None:
        """The bytes of the answer; None to quit."""
        request = sc2api_pb2.Request.FromString(data)
        kind = request.WhichOneof("request")
        if kind == "quit":
            return None
        response = sc2api_pb2.Response(id=request.id)
        try:
            getattr(response, kind).SetInParent()
            getattr(self, f"on_{kind}")(getattr(request, kind), getattr(response, kind))
        except RefusalError as fault:
            response.error.append(str(fault))
        if self.due("wrong_id", kind):
            response.id += 1
        if not self.due("no_status", kind):
            response.status = self.status
        return b"\xff\xff" if self.due("garbage", kind) else response.SerializeToString()

    def due(self, fault: str, kind: str) -> bool:
        """True at the env step that a fault is set for."""
        return kind == "step" and self.steps == self.faults.get(fault)

    def on_ping(self, _, answer):
        answer.game_version, answer.base_build = "4.10.0.75689", 75689

    def on_create_game(self, asked, _):
        path = Path(asked.local_map.map_path)
        self.map = find(path.stem)
        participant, computer = asked.player_setup
        given = (asked.local_map.map_data, participant.type, computer.type, computer.race, computer.difficulty)
        expected = (path.read_bytes(), sc2api_pb2.Participant, sc2api_pb2.Computer, RACES[self.map.enemy_race])
        if given != (*expected, sc2api_pb2.VeryHard) or asked.realtime or self.status != sc2api_pb2.launched:
            raise RefusalError("create_game: not as SMAC creates games")
        self.seed, self.status = asked.random_seed, sc2api_pb2.init_game

    def on_join_game(self, asked, answer):
        if asked.race != RACES[self.map.ally_race] or not asked.options.raw or self.status != sc2api_pb2.init_game:
            raise RefusalError("join_game: not as SMAC joins games")
        self.battles = EmbeddedBattles(self.map, 1)
        self.battles.reset(self.seed)
        answer.player_id, self.status = 1, sc2api_pb2.in_game
        self.created()

    def on_leave_game(self, *_):
        self.status = sc2api_pb2.launched

    def on_game_info(self, _, answer):
        grid, bits = answer.start_raw.pathing_grid, self.faults.get("bits", 1)
        grid.bits_per_pixel, grid.size.x, grid.size.y = bits, 32, 32
        rows = self.battles.walkable.T
        grid.data = (
            np.packbits(rows).tobytes() if bits == 1 else np.where(rows, 0, 255)[::-1].astype(np.uint8).tobytes()
        )

    def on_debug(self, asked, _):
        (command,) = asked.debug
        if sorted(command.kill_unit.tag) != sorted(unit.tag for unit in self.units()):
            raise RefusalError("debug: all living units were to be killed")
        self.battles.start(np.ones(1, np.bool_))
        self.created()

    def created(self):
        self.battle += 1
        self.waited, self.pending = 0, {}

    def on_action(self, asked, _):
        for each in asked.actions:
            order = each.action_raw.unit_command
            (tag,) = order.unit_tags
            self.pending[self.tags(0).index(tag)] = self.action(tag, order)

    def action(self, tag, order):
        if order.queue_command:
            raise RefusalError("action: orders are not queued")
        if order.ability_id == orders.STOP:
            return 1
        if order.ability_id == orders.MOVE:
            unit = next(each for each in self.units() if each.tag == tag)
            target = order.target_world_space_pos
            moves = {(0, 2): 2, (0, -2): 3, (2, 0): 4, (-2, 0): 5}
            return moves[round(target.x - unit.pos.x), round(target.y - unit.pos.y)]
        side = {orders.ATTACK: 1, orders.HEAL: 0}[order.ability_id]
        return FIXED_ACTIONS + self.tags(side).index(order.target_unit_tag)

    def on_step(self, asked, _):
        if asked.count != LOOPS:
            self.waited += asked.count
            return
        self.steps += 1
        for fault, act in (("exit", lambda: os._exit(3)), ("hang", lambda: time.sleep(60)), ("drop", dropped)):
            if self.due(fault, "step"):
                act()
        if self.due("error", "step"):
            raise RefusalError("Game has already ended")
        if self.due("ended", "step"):
            self.status = sc2api_pb2.ended
        actions = [self.pending.get(i, 0) for i in range(len(self.map.ally_kinds))]
        self.pending = {}
        self.battles.advance(np.array(actions, np.int32)[:, None])

    def on_observation(self, _, answer):
        units = self.units()
        late = self.faults.get("late", 0) - self.waited
        answer.observation.raw_data.units.extend(units[: len(units) - max(late, 0)])

    def on_save_replay(self, _, answer):
        answer.data = b"a replay"

    def tags(self, side):
        kinds = (self.map.ally_kinds, self.map.enemy_kinds)[side]
        return [self.battle * 1000 + side * 500 + i + 1 for i in range(len(kinds))]

    def units(self):
        """The living: enemies by id, and allies in another order than that of their ids."""
        found = [self.unit(side, i) for side in (0, 1) for i in range(len(self.tags(side)))]
        return [unit for unit in reversed(found) if unit.owner == 1 and unit.health > 0] + [
            unit for unit in found if unit.owner == 2 and unit.health > 0
        ]

    def unit(self, side, i):
        team = (self.battles.units.allies, self.battles.units.enemies)[side]
        kind = int(team.kind[i, 0])
        number = FACTS[kind].type_id if side else STRANGE + self.map.ally_kinds.index(kind)
        unit = sc2api_pb2.Observation().raw_data.units.add()
        unit.tag, unit.owner = self.tags(side)[i], side + 1
        unit.unit_type = self.faults.get("enemy_type", number) if side else number
        unit.pos.x, unit.pos.y = team.x[i, 0], team.y[i, 0]
        unit.health, unit.health_max, unit.shield = team.health[i, 0], team.health_max[i, 0], team.shield[i, 0]
        unit.energy, unit.weapon_cooldown = team.energy[i, 0], team.cooldown[i, 0]
        return unit


def faults_of(root: Path) -> dict[str, object]:
    """Faults hold for as many processes as `processes` says, 1 by default."""
    faults = json.loads((root / "faults.json").read_text())
    started = root / "started.txt"
    with started.open("a") as file:
        file.write("x")
    return faults if started.stat().st_size <= faults.get("processes", 1) else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("-listen", "-port", "-dataDir", "-tempDir"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    root = Path(args.dataDir)
    assert str(root / "Libs") in os.environ["LD_LIBRARY_PATH"], "the game's libraries cannot be found"
    assert not list(Path(args.tempDir).iterdir()), "the temporary folder must be new"
    faults = faults_of(root)
    if "at_start" in faults:
        sys.exit(faults["at_start"])
    refused = iter(range(faults.get("not_found", 2)))
    game = StandIn(root, faults)

    def not_yet(connection, request):
        late = next(refused, None) is not None or request.path != "/sc2api"
        return connection.respond(404, "not yet") if late else None

    def play(connection):
        try:
            for data in connection:
                if (answer := game.answer(data)) is None:
                    if "hanging_quit" in faults:
                        signal.signal(signal.SIGTERM, signal.SIG_IGN)
                        time.sleep(60)
                    os._exit(0)
                connection.send(answer)
        except DroppedError:
            connection.socket.shutdown(socket.SHUT_RDWR)
        except ConnectionClosed:
            pass

    with serve(play, args.listen, int(args.port), process_request=not_yet, max_size=None) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
