"""The multi-particle games of mpe2, in NumPy, equal to mpe2 step for step; see `marless.envs.mpe.engine`."""

from marless.envs.mpe.adversary import AdversaryOptions, SimpleAdversary
from marless.envs.mpe.crypto import CryptoOptions, SimpleCrypto
from marless.envs.mpe.push import PushOptions, SimplePush
from marless.envs.mpe.reference import ReferenceOptions, SimpleReference
from marless.envs.mpe.single import Simple, SimpleOptions
from marless.envs.mpe.speaker_listener import SimpleSpeakerListener, SpeakerListenerOptions
from marless.envs.mpe.spread import SimpleSpread, SpreadOptions
from marless.envs.mpe.tag import SimpleTag, TagOptions
from marless.envs.mpe.world_comm import SimpleWorldComm, WorldCommOptions

__all__ = [
    "AdversaryOptions",
    "CryptoOptions",
    "PushOptions",
    "ReferenceOptions",
    "Simple",
    "SimpleAdversary",
    "SimpleCrypto",
    "SimpleOptions",
    "SimplePush",
    "SimpleReference",
    "SimpleSpeakerListener",
    "SimpleSpread",
    "SimpleTag",
    "SimpleWorldComm",
    "SpeakerListenerOptions",
    "SpreadOptions",
    "TagOptions",
    "WorldCommOptions",
]
