"""Write docs/recipes.md from the recipes, the papers' claims, the departures, the data sets and the weights.

python docs/make_recipe_cards.py
"""

from collections.abc import Iterator
from pathlib import Path

from vlalign.extract.models import MODELS
from vlalign.preprocess.datasets import DATASETS
from vlalign.train.comparison.claims import NOTHING_REPRODUCED, STATES, all_claims
from vlalign.train.comparison.suite_files import Suite, all_suites, row_settings
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.recipes import cmcm, ncl, ssml, taco, toco
from vlalign.train.recipes.departures import departures_of
from vlalign.train.recipes.recipes import make_config
from vlalign.train.recipes.train_config import TrainConfig

PAGE = Path(__file__).with_name("recipes.md")
PAPERS = {"CMCM": cmcm, "NCL": ncl, "SSML": ssml, "TACo": taco, "ToCo": toco}
ESCAPED = "\\`*_[]<>|#"
HEAD = f"""# Recipes of the papers

A recipe is a paper's complete settings for one data set. This page has a row for each. Of the papers' tables,
{NOTHING_REPRODUCED}. Tests train rows on synthetic data, with few steps. No trained weights are published.

```
vlalign-train --dataset youcook2 --recipe taco-youcook2
vlalign-train --dataset youcook2 --recipe taco-youcook2-finetune --init RUN
```

A recipe whose name ends in `-finetune` starts from a trained run, `--init RUN`.

| column | meaning |
|---|---|
| tables | tables of the paper that have a row with this recipe (with the state of their [claim](claims.md)) |
| differs in | number of [departures](departures.md): different methods, open points of the paper, missing parts |

"runs" means: {STATES["runs"]}. "none" means: no table has a row with this recipe.

Limits of all recipes:

- The data sets and the weights have their own terms of use.
- A score only ranks the videos of a collection. It is not a probability.
- Search is worse for videos and captions unlike the training data.

`docs/make_recipe_cards.py` writes this page from the code.
"""
TERMS = """The terms are on the page of each publisher. We have not reviewed them, and videos belong to whoever
uploaded them. Ask the publisher before you use a data set, or weights that were trained on it, in a
product."""


def make_page() -> str:
    """Return the page."""
    lines = [HEAD]
    configs = {}
    for paper, module in PAPERS.items():
        recipes = [name for name in module.RECIPES if not name.endswith("-small")]
        configs |= {name: _config(name) for name in recipes}
        objectives = dict.fromkeys(configs[name].objective.name for name in recipes)
        lines += [f"## {paper}", ""]
        lines += [f"- objective `{name}`: {_escaped(OBJECTIVES[name].description)}" for name in objectives]
        lines += ["", "| recipe | tables | data set | features | text encoder | steps x batch | rate | differs in |"]
        lines += ["|---|---|---|---|---|---|---|---|", *(_row(configs[name]) for name in recipes), ""]
    lines += ["## Data sets", "", TERMS, "", "| data set | where its publishers offer the annotations |", "|---|---|"]
    lines += [_dataset(name) for name in sorted({config.data.dataset for config in configs.values()})]
    lines += ["", "## Weights", "", "Weights of features and text encoders. vlalign contains none of them.", ""]
    lines += ["| features or text encoder | file | where its authors publish it, with their terms |", "|---|---|---|"]
    lines += _weights({name for config in configs.values() for name in config.data.features.split("+")})
    lines += [
        f"| text encoder `{name}` | model of the hub | https://huggingface.co/{name} |"
        for name in sorted({_text_encoder(config) for config in configs.values()} - {""})
    ]
    return "\n".join(lines).rstrip() + "\n"


def _config(name: str) -> TrainConfig:
    """Return the configuration of a recipe on its data set, which its name has."""
    (dataset, *_) = sorted((d for d in DATASETS if d in name), key=len, reverse=True)
    return make_config(name, {"dataset": dataset, "init": "RUN" if name.endswith("-finetune") else ""})


def _row(config: TrainConfig) -> str:
    data, training = config.data, config.optimization
    protocol = f", `{data.protocol}`" if data.protocol else ""
    tower = f", tuned: `{config.model.video_tower}`" if config.model.video_tower else ""
    text = f"`{_text_encoder(config)}`" if _text_encoder(config) else "none"
    cells = (
        f"`{config.recipe}`",
        _tables(config.recipe) or "none",
        f"`{data.dataset}`{protocol}",
        f"`{data.features}`{tower}",
        text,
        f"{training.num_steps:,} x {training.batch_size:,}",
        f"{training.learning_rate:g}",
        f"{len(departures_of([config.recipe]))} points",
    )
    return f"| {' | '.join(cells)} |"


def _text_encoder(config: TrainConfig) -> str:
    """Return the published text encoder that a configuration reads; empty if it reads none."""
    ignored = "text_encoder" in config.ignored_settings()
    return "" if ignored or config.model.text_encoder == "small" else config.model.text_encoder


def _tables(recipe: str) -> str:
    """Return the tables that have a row with a recipe, and whether a test runs them."""
    found = {suite.source for suite in all_suites() if recipe in _recipes(suite)}
    states = {claim.name: claim.state for claim in all_claims()}
    return ", ".join(f"{name.partition(', ')[2]} ({states[name]})" for name in sorted(found, key=_number))


def _recipes(suite: Suite) -> Iterator[str]:
    for dataset in suite.datasets:
        yield from (row_settings(suite, row, dataset, {})[0] for row in suite.rows_for(dataset))


def _number(source: str) -> tuple[str, int]:
    kind, _, number = source.rpartition(" ")
    return kind, int(number)


def _dataset(name: str) -> str:
    pages = "; ".join(dict.fromkeys(DATASETS[name].published.values()))
    return f"| `{name}` | {_escaped(pages)} |"


def _weights(features: set[str]) -> Iterator[str]:
    for name in sorted(features):
        network = MODELS.get(name.removesuffix("_frames"))
        if network is not None and name not in MODELS:
            for file, published in network.published.items():
                yield f"| network that is tuned on `{name}` | `{file}` | {_escaped(published.page)} |"
        elif network is None:
            yield f"| `{name}` | not known here: imported | |"
        else:
            for file, published in network.published.items():
                yield f"| `{name}` | `{file}` | {_escaped(published.page)} |"


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in ESCAPED else c for c in text)


def main() -> None:
    """Write the page."""
    PAGE.write_text(make_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
