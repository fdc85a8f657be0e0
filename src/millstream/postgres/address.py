"""Addresses of databases without secrets, so that the catalog may store them and messages may show them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from millstream.errors import Code, MillstreamError
from millstream.postgres.driver import conninfo, psycopg

_VARIABLE = "env:"
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


@dataclass(frozen=True, slots=True)
class Address:
    """A reference to a database, as the user gave it: a url or `key=value` string without a password, or `env:NAME`."""

    reference: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Check a reference.

        Raises:
            MillstreamError: ADDRESS_INVALID; SECRET_IN_ADDRESS, without repeating the secret.
        """
        reference = text.strip()
        if reference.startswith(_VARIABLE):
            if not reference.removeprefix(_VARIABLE).isidentifier():
                raise _invalid("env: must be followed by the name of an environment variable")
            return cls(reference)
        given = _parsed(reference)
        if not given:
            raise _invalid("the address is empty")
        for key in _SECRETS:
            if given.get(key):
                raise MillstreamError(
                    Code.SECRET_IN_ADDRESS,
                    "the address holds a password or a key, which would be stored and printed",
                    hint="put the whole url into an environment variable and give env:NAME, or keep the password in a "
                    "passfile (~/.pgpass) or a service file (service=NAME)",
                )
        return cls(reference)

    def conninfo(self) -> str:
        """The connection string for libpq; it may hold a secret: never store, log or print it.

        Raises:
            MillstreamError: ADDRESS_INVALID if the variable is not set.
        """
        if not self.reference.startswith(_VARIABLE):
            return conninfo.make_conninfo(self.reference)
        name = self.reference.removeprefix(_VARIABLE)
        value = os.environ.get(name)
        if not value:
            raise MillstreamError(
                Code.ADDRESS_INVALID,
                f"the environment variable {name} is not set",
                hint=f"export {name}=postgresql://user:password@host/database",
            )
        _parsed(value)
        return conninfo.make_conninfo(value)

    def __str__(self) -> str:
        return self.reference


@dataclass(frozen=True, slots=True)
class ResolvedAddress(Address):
    """An address with everything needed to connect from another process or machine, secrets included: never stored."""

    secret: str = field(repr=False)

    def conninfo(self) -> str:
        """The connection string for libpq."""
        return self.secret

    def __str__(self) -> str:
        return self.reference


def _parsed(text: str) -> dict[str, object]:
    try:
        return dict(conninfo.conninfo_to_dict(text))
    except psycopg.ProgrammingError:
        # libpq's message would repeat parts of the text, which may contain a password
        raise _invalid("the address is neither a url nor a key=value string that libpq understands") from None


def _invalid(message: str) -> MillstreamError:
    return MillstreamError(
        Code.ADDRESS_INVALID, message, hint="e.g. postgresql://user@host:5432/database, service=NAME or env:NAME"
    )
