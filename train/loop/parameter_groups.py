"""The optimizer's groups of a model's parameters, as the setting ``parameter_groups`` defines them."""

from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ...storage.common.errors import SettingError
from ..settings import OptimizationSettings, ParameterGroup

FACTOR, SCHEDULE = "factor", "schedule"
"""Keys of an optimizer's group: the factor of its learning rate, and its schedule or None."""


def parameter_groups(model: nn.Module, settings: OptimizationSettings) -> tuple[list[dict[str, Any]], list[str]]:
    """Return (groups for the optimizer, a line about each group of the settings, frozen ones included).

    The optimizer gets no frozen parameters. Without groups in the settings, it gets all parameters as one group, and
    there are no lines.

    Args:
        model: The model; parameters of frozen groups are changed to require no gradients.
        settings: The run's.

    Raises:
        SettingError: A pattern matches none of the remaining parameters, or all parameters are frozen.
    """
    if not settings.groups:
        return [{"params": list(model.parameters())}], []
    left, made, lines = dict(model.named_parameters()), [], []
    for group in settings.groups:
        found = {name: left.pop(name) for name in list(left) if fnmatchcase(name, group.pattern)}
        if not found:
            top = ", ".join(dict.fromkeys(f"{name.partition('.')[0]}" for name in dict(model.named_parameters())))
            problem = f"{group.pattern!r} matches none of the remaining parameters; their names begin with {top}"
            raise SettingError("parameter_groups", settings.parameter_groups, problem)
        lines.append(_line(repr(group.pattern), list(found.values()), group))
        if group.frozen:
            for parameter in found.values():
                parameter.requires_grad_(False)
        else:
            decay = settings.weight_decay if group.decay is None else group.decay
            made.append(
                {"params": list(found.values()), "weight_decay": decay, FACTOR: group.lr, SCHEDULE: group.schedule}
            )
    if left:
        lines.append(_line("the rest", list(left.values()), ParameterGroup(pattern="*")))
        made.append({"params": list(left.values())})
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingError("parameter_groups", settings.parameter_groups, "freezes all parameters; leave some to train")
    return made, lines


def _line(what: str, parameters: list[nn.Parameter], group: ParameterGroup) -> str:
    size = sum(parameter.numel() for parameter in parameters)
    others = {"weight decay": group.decay, "schedule": group.schedule}
    how = [f"learning rate * {group.lr:g}", *(f"{name} {value}" for name, value in others.items() if value is not None)]
    return f"{what}: {len(parameters):,} parameters of {size:,} numbers, {'frozen' if group.frozen else ', '.join(how)}"
