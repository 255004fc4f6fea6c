"""Nested lists, tuples and dicts: taking them apart into leaves and structure, and putting them together again.

Everything other than a list, a tuple or a dict is a leaf, ``None`` included. Nothing here recurses, so the depth of a
tree is limited by memory alone.
"""

from weft.tree.levels import END as END
from weft.tree.levels import Levels as Levels
from weft.tree.levels import ReadDicts as ReadDicts
from weft.tree.levels import Reading as Reading
from weft.tree.paths import dotted as dotted
from weft.tree.paths import join_path as join_path
from weft.tree.structure import CONTAINERS as CONTAINERS
from weft.tree.structure import MISSING as MISSING
from weft.tree.structure import Container as Container
from weft.tree.structure import Structure as Structure
from weft.tree.structure import broadcast_prefix as broadcast_prefix
from weft.tree.structure import build as build
from weft.tree.structure import refilling as refilling
from weft.tree.structure import refilling_anew as refilling_anew
from weft.tree.walks import EndlessTree as EndlessTree
from weft.tree.walks import Filling as Filling
from weft.tree.walks import Unfinished as Unfinished
from weft.tree.walks import cycle_of as cycle_of
from weft.tree.walks import descend as descend
from weft.tree.walks import flatten as flatten
from weft.tree.walks import items as items
from weft.tree.walks import leaves_of as leaves_of
from weft.tree.walks import mutable_containers as mutable_containers
from weft.tree.walks import unfold as unfold
