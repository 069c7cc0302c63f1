"""Modules that need the extra `secure`: they are imported when something is done with them."""


def masks():
    try:
        from jaxbo.federation import _masks
    except ImportError as error:
        raise _missing(error) from error
    return _masks


def identities():
    try:
        from jaxbo.federation import _identities
    except ImportError as error:
        raise _missing(error) from error
    return _identities


def _missing(error: ImportError) -> ImportError:
    return ImportError(f'secure sums need {error.name}: pip install "jaxbo-agents[secure]".')
