"""The leadership of the lake, in its own row."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from millstream.catalog.leadership import Leader, Leadership, lost
from millstream.catalog.schema import lake
from millstream.catalog.stores import events
from millstream.events import Event, EventName

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_READ = sa.select(lake.c.leader_epoch, lake.c.leader, lake.c.woke_at, lake.c.is_paused)
_EPOCH = sa.select(lake.c.leader_epoch)
_LOCK_EPOCH = sa.select(lake.c.leader_epoch).with_for_update(key_share=True)


def read(connection: Connection) -> Leadership:
    """The leadership as it is recorded."""
    row = connection.execute(_READ).one()
    leader = None if row.leader is None else Leader.load(row.leader)
    return Leadership(epoch=row.leader_epoch, leader=leader, woke_at=row.woke_at, is_paused=row.is_paused)


def check(connection: Connection, epoch: int, *, is_locking: bool = True) -> None:
    """Refuse to write under a leadership that has ended, and keep it from ending until the transaction does.

    The lake's row stays locked, so a process that takes over waits for a write that passed this check; without
    `is_locking` it does not wait.
    """
    current = int(connection.execute(_LOCK_EPOCH if is_locking else _EPOCH).scalar_one())
    if current != epoch:
        raise lost(epoch, current)


def take(connection: Connection, leader: Leader, now: datetime) -> int:
    """Begin the next epoch; a leader that did not release its leadership has lost it."""
    connection.execute(_LOCK_EPOCH)
    before = read(connection)
    epoch = before.epoch + 1
    values = {"leader_epoch": epoch, "leader": leader.dump(), "woke_at": now}
    connection.execute(sa.update(lake).values(values))
    lost = [_event(EventName.LEADER_LOST, before.leader, before.epoch, now)] if before.leader is not None else []
    events.add(connection, [*lost, _event(EventName.LEADER_ELECTED, leader, epoch, now)])
    return epoch


def release(connection: Connection, epoch: int) -> None:
    """End a leadership without a successor; one that was already lost stays with its new leader."""
    connection.execute(sa.update(lake).where(lake.c.leader_epoch == epoch).values(leader=None))


def wake(connection: Connection, at: datetime) -> None:
    """Record that the leader looked for work."""
    connection.execute(sa.update(lake).values(woke_at=at))


def set_paused(connection: Connection, is_paused: bool, now: datetime) -> bool:
    """Pause or resume automatic refreshes; false if nothing changed."""
    if connection.execute(sa.update(lake).where(lake.c.is_paused != is_paused).values(is_paused=is_paused)).rowcount:
        events.add(connection, [Event.of(EventName.DAEMON_PAUSED if is_paused else EventName.DAEMON_RESUMED, now)])
        return True
    return False


def _event(name: EventName, leader: Leader, epoch: int, now: datetime) -> Event:
    return Event.of(name, now, leader=leader.id, host=leader.host, pid=leader.pid, version=leader.version, epoch=epoch)
