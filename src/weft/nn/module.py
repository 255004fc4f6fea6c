"""`Module`, the base of all layers and models: a dict whose entries are also attributes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from reprlib import recursive_repr
from typing import Any, ClassVar, NoReturn, Self

import weft.core as mx
from weft.nn.checks import entry_names
from weft.nn.module_tree import endless, entries_of, outline, replace_leaves, selected, selected_inside
from weft.nn.weights import check_weights, save_named, weights_of
from weft.tree import join_path
from weft.utils import tree_flatten, tree_unflatten

__all__ = ["Module"]

_NONE: frozenset[str] = frozenset()
EntryFilter = Callable[["Module", str, Any], bool]

NOT_INITIALISED = (
    "`{name}` has no `{key}`: its `__init__` must call `super().__init__()` before anything else, "
    "so that the module can keep its state."
)
RESERVED_NAME = (
    "`{key}` is an attribute of every Module and cannot name a parameter or sub-module of `{name}`: "
    "`module.{key}` would never return it. Choose another name."
)


def _is_floating(dtype: mx.Dtype) -> bool:
    return mx.issubdtype(dtype, mx.floating)


def _unchanged(value: Any) -> Any:
    return value


def _is_no_container(module: Module, key: str, value: Any) -> bool:
    return not isinstance(value, (dict, list))


def _is_module_entry(module: Module, key: str, value: Any) -> bool:
    return isinstance(value, Module)


class Module(dict[str, Any]):
    """The base class of layers and models: a tree of arrays and other modules.

    Arrays, modules, dicts, lists and tuples that are assigned to an attribute become entries of the dict; everything
    else becomes an ordinary attribute. The parameters are the arrays in entries whose name does not start with an
    underscore, also inside lists, dicts and other modules (but not inside tuples).

    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = mx.array([2.0, 3.0])
    ...     def __call__(self, x):
    ...         return self.factor * x
    >>> model = Scale()
    >>> model.parameters()
    {'factor': array([2, 3], dtype=float32)}
    >>> model(mx.array([1.0, 1.0]))
    array([2, 3], dtype=float32)
    """

    # Compiled functions read the attributes of all modules in each call. Most modules only have the one in this slot.
    __slots__ = ("__dict__", "__weakref__", "_training")
    _training: bool
    _never_trained: ClassVar[frozenset[str]] = frozenset()
    """Entries that are always frozen: arrays that the layer itself changes, such as running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self._training = True

    def __getattr__(self, key: str) -> Any:
        if key in self:
            return self[key]
        if key in ("_training", "training"):
            raise AttributeError(NOT_INITIALISED.format(name=type(self).__name__, key=key))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {key!r}")

    def __setattr__(self, key: str, value: Any) -> None:
        if not isinstance(value, (mx.array, dict, list, tuple)):
            super().__setattr__(key, value)
            self.pop(key, None)
            return
        if key in _RESERVED:
            raise AttributeError(RESERVED_NAME.format(key=key, name=type(self).__name__))
        self.__dict__.pop(key, None)
        self[key] = value

    def __delattr__(self, key: str) -> None:
        if key in self:
            del self[key]
        else:
            super().__delattr__(key)

    @recursive_repr("...")
    def __repr__(self) -> str:
        def own_text(module: Module) -> tuple[str, list[tuple[str, Any]] | None]:
            if module is not self and type(module).__repr__ is not Module.__repr__:
                return repr(module), None
            children = tree_flatten(module.children(), is_leaf=Module.is_module)
            return f"{type(module).__name__}({module._extra_repr()}", children

        return outline(self, own_text)

    def _extra_repr(self) -> str:
        """What is printed of a layer between its parentheses; layers override it."""
        return ""

    @staticmethod
    def is_module(value: Any) -> bool:
        """Whether ``value`` is a `Module`.

        >>> nn.Module.is_module(nn.ReLU()), nn.Module.is_module(nn.relu)
        (True, False)
        """
        return isinstance(value, Module)

    @staticmethod
    def valid_child_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an entry may hold sub-modules: it is a dict (such as a module) or a list.

        Args:
            module: the module that contains the entry; `filter_and_map` passes these arguments.
            key: its path in the module.
            value: its value.

        >>> list(nn.Sequential(nn.ReLU()).filter_and_map(nn.Module.valid_child_filter))
        ['layers']
        """
        return isinstance(value, (dict, list))

    @staticmethod
    def valid_parameter_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an entry is or may hold parameters: its name does not start with an underscore.

        Args:
            module: the module that contains the entry; `filter_and_map` passes these arguments.
            key: its path in the module.
            value: its value.

        >>> list(nn.Linear(2, 3).filter_and_map(nn.Module.valid_parameter_filter))
        ['weight', 'bias']
        """
        return isinstance(value, (dict, list, mx.array)) and not key.startswith("_")

    @staticmethod
    def trainable_parameter_filter(module: Module, key: str, value: Any) -> bool:
        """Whether an entry is or may hold parameters that are not frozen.

        Args:
            module: the module that contains the entry; `filter_and_map` passes these arguments.
            key: its path in the module.
            value: its value.

        >>> list(nn.Linear(2, 3).freeze(keys="weight").filter_and_map(nn.Module.trainable_parameter_filter))
        ['bias']
        """
        return Module.valid_parameter_filter(module, key, value) and key not in module._frozen()

    @property
    def state(self) -> Self:
        """The module itself, which is a dict of all its arrays and can be given to `mx.compile` as ``inputs`` and
        ``outputs``.

        Unlike `parameters` it is not a copy, and it includes arrays whose name starts with an underscore.

        >>> model = nn.Linear(2, 3)
        >>> model.state is model
        True
        """
        return self

    def filter_and_map(
        self,
        filter_fn: EntryFilter,
        map_fn: Callable[[Any], Any] | None = None,
        is_leaf_fn: EntryFilter | None = None,
    ) -> dict[str, Any]:
        """A tree of dicts and lists with the entries of the module that pass a filter.

        Args:
            filter_fn: called with the module, the path of the entry inside this module (``layers.0``) and its value. An
                entry for which it returns False is left out; in a list or dict inside the module, it is replaced by
                ``{}``.
            map_fn: applied to the leaves; by default leaves are not changed.
            is_leaf_fn: called like ``filter_fn``; whether a value is a leaf. By default everything is, except modules,
                dicts and lists.

        Raises:
            RuntimeError: ``is_leaf_fn`` returns False for something that has no entries.
            ValueError: a module contains itself.

        >>> nn.Linear(2, 3).filter_and_map(nn.Module.valid_parameter_filter, lambda p: p.shape)
        {'weight': (3, 2), 'bias': (3,)}
        """
        functions = filter_fn, map_fn or _unchanged, is_leaf_fn or _is_no_container
        return selected(self, functions, self.is_module)

    def parameters(self) -> dict[str, Any]:
        """All parameters as a tree of dicts and lists.

        >>> nn.LayerNorm(2).parameters()
        {'weight': array([1, 1], dtype=float32), 'bias': array([0, 0], dtype=float32)}
        """
        return self.filter_and_map(self.valid_parameter_filter)

    def trainable_parameters(self) -> dict[str, Any]:
        """The parameters that are not frozen, as a tree of dicts and lists.

        >>> nn.LayerNorm(2).freeze(keys="weight").trainable_parameters()
        {'bias': array([0, 0], dtype=float32)}
        """
        return self.filter_and_map(self.trainable_parameter_filter)

    def children(self) -> dict[str, Any]:
        """The direct sub-modules, as a tree of dicts and lists.

        >>> nn.Sequential(nn.ReLU(), nn.Tanh()).children()
        {'layers': [ReLU(), Tanh()]}
        """
        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=_is_module_entry)

    def leaf_modules(self) -> dict[str, Any]:
        """The sub-modules, at any depth, that have no sub-modules themselves, as a tree of dicts and lists.

        >>> nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh())).leaf_modules()
        {'layers': [ReLU(), {'layers': [Tanh()]}]}
        """

        def is_leaf(module: Module, key: str, value: Any) -> bool:
            if not isinstance(value, Module):
                return False
            # Not `children`, because an error about a cycle must name the module on which the method was called.
            children = selected_inside(value, (value.valid_child_filter, _unchanged, _is_module_entry), self.is_module)
            return not tree_flatten(children, is_leaf=Module.is_module)

        return self.filter_and_map(self.valid_child_filter, is_leaf_fn=is_leaf)

    def named_modules(self) -> list[tuple[str, Module]]:
        """This module and all modules below it, each with its path, parents first; the last child comes before the
        others.

        >>> [name for name, _ in nn.Sequential(nn.ReLU(), nn.Tanh()).named_modules()]
        ['', 'layers.1', 'layers.0']
        """
        found: list[tuple[str, Module]] = []
        waiting: list[tuple[str, Module, frozenset[int]]] = [("", self, frozenset())]
        while waiting:
            path, module, above = waiting.pop()
            if id(module) in above:
                raise endless(self, path)
            found.append((path, module))
            children = tree_flatten(module.children(), is_leaf=Module.is_module)
            waiting.extend((join_path(path, key), child, above | {id(module)}) for key, child in children)
        return found

    def modules(self) -> list[Module]:
        """This module and all modules below it, in the order of `named_modules`.

        >>> nn.Sequential(nn.ReLU()).modules()[1:]
        [ReLU()]
        """
        return [module for _, module in self.named_modules()]

    def update(  # type: ignore[override]  # MLX's name
        self, parameters: dict[str, Any] | list[Any], strict: bool = True
    ) -> Self:
        """Replace parameters by those of a tree, which may contain only some of them.

        Args:
            parameters: a tree like that of `parameters`; an empty dict or list replaces nothing.
            strict: whether an entry that the module does not have raises ``ValueError``; otherwise it is skipped.

        Returns:
            The module.

        >>> nn.LayerNorm(2).update({"bias": mx.array([5.0, 6.0])}).bias
        array([5, 6], dtype=float32)
        """
        replace_leaves(self, entries_of("update", "parameters", parameters), mx.array, "parameter", strict)
        return self

    def update_modules(self, modules: dict[str, Any] | list[Any], strict: bool = True) -> Self:
        """Replace sub-modules by those of a tree, which may contain only some of them.

        Args:
            modules: a tree like those of `children` and `leaf_modules`; an empty dict or list replaces nothing.
            strict: whether an entry that the module does not have raises ``ValueError``; otherwise it is skipped.

        Returns:
            The module.

        >>> nn.Sequential(nn.ReLU(), nn.Tanh()).update_modules({"layers": [nn.GELU()]}).layers
        [GELU(), Tanh()]
        """
        replace_leaves(self, entries_of("update_modules", "modules", modules), Module, "sub-module", strict)
        return self

    def apply(self, map_fn: Callable[[mx.array], mx.array], filter_fn: EntryFilter | None = None) -> Self:
        """Replace each parameter by the result of a function.

        Args:
            map_fn: called with each array.
            filter_fn: which entries are replaced, as in `filter_and_map`; by default all parameters.

        Returns:
            The module.

        >>> nn.LayerNorm(2).apply(lambda p: p + 1).weight
        array([2, 2], dtype=float32)
        """
        return self.update(self.filter_and_map(filter_fn or self.valid_parameter_filter, map_fn))

    def apply_to_modules(self, apply_fn: Callable[[str, Module], Any]) -> Self:
        """Call a function with the path and the module for this module (path ``""``) and all modules below it.

        Returns:
            The module.

        >>> model = nn.Sequential(nn.ReLU()).apply_to_modules(lambda path, module: print(repr(path)))
        ''
        'layers.0'
        """
        for path, module in self.named_modules():
            apply_fn(path, module)
        return self

    def set_dtype(self, dtype: mx.Dtype, predicate: Callable[[mx.Dtype], bool] | None = _is_floating) -> None:
        """Convert the parameters to another dtype.

        Args:
            dtype: the new dtype.
            predicate: called with the dtype of each parameter; whether to convert it. By default real floating-point
                parameters are converted; with None, all.

        >>> model = nn.LayerNorm(2)
        >>> model.set_dtype(mx.float16)
        >>> model.weight
        array([1, 1], dtype=float16)
        """
        self.apply(lambda p: p.astype(dtype) if predicate is None or predicate(p.dtype) else p)

    @property
    def _no_grad(self) -> set[str]:
        """The names of frozen entries, as a set that may be changed. Most modules have no frozen entries, and no set
        until then."""
        names: set[str] = self.__dict__.setdefault("_no_grad", set())
        return names

    @_no_grad.setter
    def _no_grad(self, names: set[str]) -> None:
        self.__dict__["_no_grad"] = names

    @property
    def training(self) -> bool:
        """Whether the module is in training mode; `train` and `eval` change it."""
        return self._training

    @training.setter
    def training(self, mode: bool) -> NoReturn:
        raise AttributeError(f"[{type(self).__name__}] `training` cannot be assigned: use `train()` or `eval()`.")

    def train(self, mode: bool = True) -> Self:
        """Put this module and all modules below it into training mode or, with ``mode=False``, into evaluation mode.

        Returns:
            The module.

        >>> nn.Dropout().train(False).training
        False
        """

        return self.apply_to_modules(lambda path, module: module._set_training_mode(mode))

    def _set_training_mode(self, mode: bool) -> None:
        """Put only this module into a mode; layers that change with the mode override this."""
        self._training = mode

    def eval(self) -> Self:
        """Put this module and all modules below it into evaluation mode, as ``train(False)`` does.

        Returns:
            The module.

        >>> nn.Dropout(0.5).eval()(mx.array([1.0, 2.0]))
        array([1, 2], dtype=float32)
        """
        return self.train(False)

    def freeze(self, *, recurse: bool = True, keys: str | Iterable[str] | None = None, strict: bool = False) -> Self:
        """Remove parameters from `trainable_parameters`, and so from the gradients of `nn.value_and_grad`.

        Args:
            recurse: whether to do the same in all modules below.
            keys: names of the entries to freeze; by default all parameters.
            strict: whether a key that no module has raises ``KeyError``.

        Returns:
            The module.

        >>> nn.Linear(2, 3).freeze().trainable_parameters()
        {}
        """
        modules = self.modules() if recurse else [self]
        names = entry_names("freeze", keys, modules, strict)
        for module in modules:
            frozen = module._frozen().union(module._own_parameter_paths() if names is None else names)
            if frozen:
                module._no_grad = set(frozen)
        return self

    def unfreeze(self, *, recurse: bool = True, keys: str | Iterable[str] | None = None, strict: bool = False) -> Self:
        """Undo `freeze`; the arguments mean the same.

        Returns:
            The module.

        >>> nn.LayerNorm(2).freeze().unfreeze(keys="bias").trainable_parameters()
        {'bias': array([0, 0], dtype=float32)}
        """
        modules = self.modules() if recurse else [self]
        names = entry_names("unfreeze", keys, modules, strict)
        for module in modules:
            frozen = module._frozen()
            unfrozen = set(frozen) if names is None else frozen.intersection(names)
            left = frozen - (unfrozen - module._never_trained)
            if left:
                module._no_grad = set(left)
            else:
                module.__dict__.pop("_no_grad", None)
        return self

    def _frozen(self) -> set[str] | frozenset[str]:
        """The names of frozen entries."""
        self._training  # noqa: B018  # what raises if `__init__` was not called
        names: set[str] | frozenset[str] = self.__dict__.get("_no_grad", _NONE)
        return names

    def _own_parameter_paths(self) -> list[str]:
        """The paths of the parameters of this module, without those of its sub-modules."""
        own = self.filter_and_map(
            lambda module, key, value: not isinstance(value, Module) and self.valid_parameter_filter(module, key, value)
        )
        return [path for path, _ in tree_flatten(own)]

    def save_weights(self, file: str | os.PathLike[str]) -> None:
        """Write all parameters to a file, each under its path.

        Args:
            file: a name that ends in ``.npz`` or ``.safetensors``, which decides the format; another raises
                ``ValueError``.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nn.LayerNorm(2).save_weights(f"{folder}/norm.safetensors")
        ...     model = nn.LayerNorm(2).load_weights(f"{folder}/norm.safetensors")
        """
        save_named(file, dict(tree_flatten(self.parameters())))

    def load_weights(
        self,
        file_or_weights: str | os.PathLike[str] | Iterable[tuple[str, mx.array]] | dict[str, mx.array],
        strict: bool = True,
    ) -> Self:
        """Replace parameters by those of a file or a list.

        Args:
            file_or_weights: a file of `save_weights`, or pairs of a path and an array.
            strict: whether paths and shapes must be exactly those of the module. Otherwise missing parameters are not
                changed, unknown ones are skipped, and shapes may change.

        Returns:
            The module.

        Raises:
            ValueError: the arrays do not fit the module (if ``strict``), or an entry is no array.

        >>> nn.LayerNorm(2).load_weights([("bias", mx.array([1.0, 2.0]))], strict=False).bias
        array([1, 2], dtype=float32)
        """
        weights = weights_of(file_or_weights)
        if strict:
            check_weights(dict(tree_flatten(self.parameters())), weights)
        # An empty path is that of the module itself, at which there is no parameter.
        if named := [(path, array) for path, array in weights.items() if path]:
            self.update(tree_unflatten(named), strict=False)
        return self


# Attribute lookup finds these names before the entries of the dict.
_RESERVED = frozenset(dir(Module))
