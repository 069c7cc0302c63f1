"""Modules that need the extra `secure`: they are imported when something is done with them."""

from jaxbo.privacy.distributed import importing


def masks():
    with importing():
        from jaxbo.federation import _masks
    return _masks


def identities():
    with importing():
        from jaxbo.federation import _identities
    return _identities
