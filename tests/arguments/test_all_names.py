"""Every exported name is in one of the tables of arguments, or stands here with the reason why not."""

import inspect

import jaxbo
from jaxbo import federation
from tests.arguments import (
    test_constructors,
    test_federation,
    test_functions,
    test_loops,
    test_pictures,
    test_results,
)

TABLES = (
    test_constructors.CONSTRUCTORS,
    test_loops.LOOPS,
    test_functions.TABLE,
    test_results.TABLE,
    test_pictures.TABLE,
    test_federation.TABLE,
)
#: Names that take no arguments of a user's.
WITHOUT = {
    "made without arguments": {
        "EI", "Thompson", "Largest", "Exact", "OnFeatures", "RandomTree",
        "InverseSqrt", "Inverse", "InverseSquare",
        "ackley5", "dropwave", "eggholder", "hartmann3", "hartmann6", "shekel4", "michalewicz10",
        "branin", "branin_rescaled", "sobester",
        "Desk.close", "Ledger.charges", "Ledger.to_json",
    },
    "made by what runs": {
        "Audit", "Best", "Round", "Summary", "Timeline", "Trace", "Observations", "Reply", "Request",
    },
    "raised": {
        "BudgetError", "CheckpointError", "LostWorkerError", "OwnerError", "RefusedError",
        "SimulationWarning",
    },
    "for subclasses, which CONTRIBUTING.md is about": {
        "AbstractAlgorithm", "AbstractFederated", "AbstractIndependent", "AbstractObjective",
        "AbstractOneModel", "AbstractPrivate", "AbstractSchedule",
    },
    "for other modules of the package": {
        "check_accountant", "check_delta", "loss", "number_of_releases", "Desk.own",
    },
}  # fmt: skip
MODULES = [federation, *(thing for thing in vars(jaxbo).values() if inspect.ismodule(thing))]
WITH_METHODS = (jaxbo.Desk, jaxbo.Ledger)


def public(module):
    """Names of the functions and classes that a module offers."""
    given = getattr(module, "__all__", None)
    names = given if given is not None else [n for n in vars(module) if not n.startswith("_")]
    return {
        name
        for name in names
        if inspect.isroutine(thing := getattr(module, name)) or inspect.isclass(thing)
        if given is not None or thing.__module__ == module.__name__
    }


def exported():
    offered = (module for module in MODULES if module.__name__.split(".")[-1] in jaxbo.__all__)
    names = set().union(*map(public, (jaxbo, federation, *offered)))
    methods = {
        f"{kind.__name__}.{name}"
        for kind in WITH_METHODS
        for name, thing in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_")
    }
    return names | methods


def tabled():
    """The names in the tables; an entry may say more after its name, and be of a method of a desk."""
    names = {entry.split()[0].rstrip(",") for table in TABLES for entry in table}
    return names | {f"Desk.{name}" for name in names}


def test_every_exported_name_is_in_a_table_or_takes_no_arguments():
    without = set().union(*WITHOUT.values())
    assert exported() - tabled() - without == set()
    assert without - exported() == set()
    assert without & tabled() == set()
