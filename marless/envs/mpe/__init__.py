"""The multi-particle games of mpe2, in NumPy, equal to mpe2 step for step; see `marless.envs.mpe.engine`."""

from marless.envs.mpe.adversary import AdversaryOptions, SimpleAdversary
from marless.envs.mpe.single import Simple, SimpleOptions
from marless.envs.mpe.speaker_listener import SimpleSpeakerListener, SpeakerListenerOptions
from marless.envs.mpe.spread import SimpleSpread, SpreadOptions

__all__ = [
    "AdversaryOptions",
    "Simple",
    "SimpleAdversary",
    "SimpleOptions",
    "SimpleSpeakerListener",
    "SimpleSpread",
    "SpeakerListenerOptions",
    "SpreadOptions",
]
