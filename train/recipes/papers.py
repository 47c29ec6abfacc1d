"""Complete settings as the papers give them, one file per paper. A setting that a recipe leaves out has its default.

To add a recipe, add a row to its paper's file, or write a file for a new paper and add it here. Say in
``departure_data`` where it departs from the paper, and run docs/make_departures.py.
"""

from types import MappingProxyType

from . import cmcm, ncl, ssml, taco, toco
from .recipe import Recipe

RECIPES = MappingProxyType[str, Recipe]({**taco.RECIPES, **toco.RECIPES, **ssml.RECIPES, **ncl.RECIPES, **cmcm.RECIPES})
"""{name: recipe}. A name starts with the recipe's objective."""
