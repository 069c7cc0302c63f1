"""Modules that need the extra `secure`: they are imported when something is done with them."""

from jaxbo.privacy.distributed import missing


def masks():
    try:
        from jaxbo.federation import _masks
    except ImportError as error:
        raise missing(error) from error
    return _masks


def identities():
    try:
        from jaxbo.federation import _identities
    except ImportError as error:
        raise missing(error) from error
    return _identities
