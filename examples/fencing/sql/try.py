#!/usr/bin/env python3
"""Runs the statements of a .sql file beside this one, and compares the answers with those that the file has.

    try.py sqlite.sql
    try.py postgres.sql DIRECTORY_OF_THE_SOCKET
    try.py mariadb.sql PATH_OF_THE_SOCKET

With --update, it writes the answers into the file. The database is an empty one, of which nothing is needed later.
An answer is a comment below its statement. `-- session NAME` goes on in a connection of that name. A session that waits
for another one is "in the background", and its answer comes where it goes on "again".
"""

import concurrent.futures
import pathlib
import re
import sys
import tempfile

def postgres(socket):
    import psycopg2

    def connect(_name):
        connection = psycopg2.connect(host=socket, user="postgres", dbname="postgres")
        connection.autocommit = True
        return connection

    return connect, lambda error: error.pgcode

def mariadb(socket):
    import pymysql

    def connect(name):
        flag = 0 if name == "changed" else pymysql.constants.CLIENT.FOUND_ROWS
        return pymysql.connect(unix_socket=socket, user="root", database="test", autocommit=True, client_flag=flag)

    # The driver does not show the SQLSTATE. The manual lists both as 40001.
    states = {1213: "40001 (1213)"}
    return connect, lambda error: states.get(error.args[0], error.args[0])

def sqlite(directory):
    import sqlite3

    def connect(_name):
        file = pathlib.Path(directory) / "database"
        return sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)

    return connect, lambda error: error.sqlite_errorname.replace("SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY")

def rows(count):
    return f"{count} row" if count == 1 else f"{count} rows"

def run(text, connect, code_of):
    """The text, with the answers of today."""
    sessions = {}
    threads = concurrent.futures.ThreadPoolExecutor()
    session, background, waiting = "first", False, {}

    def answer(name, statement):
        if name not in sessions:
            sessions[name] = connect(name)
        cursor = sessions[name].cursor()
        try:
            cursor.execute(statement)
        except Exception as error:  # Each driver has its own.
            return f"-- = error {code_of(error)}"
        if cursor.description:
            return "-- = " + ", ".join(str(row[0]) for row in cursor.fetchall())
        if re.match("UPDATE|INSERT", statement):
            return f"-- = {rows(cursor.rowcount)}"

    lines = []
    for line in text.splitlines():
        if line.startswith("-- = "):
            continue
        lines.append(line)
        if named := re.fullmatch("-- session (\\w+)(, in the background|, again)?", line):
            session, background = named[1], named[2] == ", in the background"
            if named[2] == ", again":
                lines.append(waiting.pop(session).result(timeout=20))
        elif line and not line.startswith("--"):
            if background:
                waiting[session] = threads.submit(answer, session, line)
                wait_blocked(connect)
            elif told := answer(session, line):
                lines.append(told)
    return "\n".join(lines) + "\n"

def wait_blocked(connect):
    """Until a statement waits for a lock of another one."""
    cursor = connect("observer").cursor()
    for _ in range(100_000):
        cursor.execute("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
        if cursor.fetchone()[0]:
            return
    raise SystemExit("no statement waits")

def main():
    words = [word for word in sys.argv[1:] if word != "--update"]
    file = pathlib.Path(__file__).with_name(words[0])
    with tempfile.TemporaryDirectory() as directory:
        place = words[1] if len(words) > 1 else directory
        connect, code_of = {"postgres": postgres, "mariadb": mariadb, "sqlite": sqlite}[file.stem](place)
        recorded = file.read_text()
        today = run(recorded, connect, code_of)
    if "--update" in sys.argv:
        file.write_text(today)
    elif today != recorded:
        print(today)
        raise SystemExit(f"{file.name} has other answers than those above")
    print(f"{file.name}: {today.count('-- = ')} answers")

main()
