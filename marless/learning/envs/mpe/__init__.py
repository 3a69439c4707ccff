"""The multi-particle games of mpe2, in NumPy, equal to mpe2 step for step; see `marless.learning.envs.mpe.engine`."""

from marless.learning.envs.mpe.adversary import AdversaryOptions, SimpleAdversary
from marless.learning.envs.mpe.crypto import CryptoOptions, SimpleCrypto
from marless.learning.envs.mpe.push import PushOptions, SimplePush
from marless.learning.envs.mpe.reference import ReferenceOptions, SimpleReference
from marless.learning.envs.mpe.single import Simple, SimpleOptions
from marless.learning.envs.mpe.speaker_listener import SimpleSpeakerListener, SpeakerListenerOptions
from marless.learning.envs.mpe.spread import SimpleSpread, SpreadOptions
from marless.learning.envs.mpe.tag import SimpleTag, TagOptions
from marless.learning.envs.mpe.world_comm import SimpleWorldComm, WorldCommOptions

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
