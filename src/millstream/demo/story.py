"""The statements that the PostgreSQL demonstration runs, as in docs/tutorials/getting-started-postgres.md."""

from __future__ import annotations

from dataclasses import dataclass

DATABASE, ROLE, VARIABLE = "hr", "millstream", "HR_URL"

TABLES = (
    "CREATE TABLE departments (id int PRIMARY KEY, name text NOT NULL, parent int REFERENCES departments)",
    """
    CREATE TABLE employees (
      id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      name text NOT NULL,
      department int NOT NULL REFERENCES departments,
      salary numeric(10,2) NOT NULL)
    """,
    """
    INSERT INTO departments VALUES
      (1, 'Mill', NULL), (2, 'Workshop', 1), (3, 'Office', 1), (4, 'Carpentry', 2), (5, 'Forge', 2), (6, 'Accounts', 3)
    """,
    """
    INSERT INTO employees (name, department, salary) VALUES
      ('Ingrid', 1, 7200), ('Tor', 4, 4300), ('Liv', 4, 4550.50), ('Arne', 5, 4800), ('Berit', 6, 5100),
      ('Nils', 3, 3900)
    """,
)
GRANTS = (
    "CREATE ROLE millstream LOGIN",
    "GRANT CREATE ON DATABASE hr TO millstream",
    "GRANT USAGE, CREATE ON SCHEMA public TO millstream",
    "GRANT SELECT, TRIGGER ON departments, employees TO millstream",
)

QUERIES = {
    "org_chart": """
        WITH RECURSIVE tree AS (
          SELECT id, name, 0 AS level, name AS path FROM hr.departments WHERE parent IS NULL
          UNION ALL
          SELECT d.id, d.name, tree.level + 1, tree.path || ' / ' || d.name
          FROM hr.departments d JOIN tree ON d.parent = tree.id
        )
        SELECT id, name, level, path FROM tree
    """,
    "team_costs": """
        SELECT t.id, t.path, COUNT(e.id) AS people, COALESCE(SUM(e.salary), 0) AS payroll
        FROM org_chart t LEFT JOIN hr.employees e ON e.department = t.id
        GROUP BY t.id, t.path
    """,
    "division_costs": """
        SELECT split_part(path, ' / ', 2) AS division, SUM(people) AS people, SUM(payroll) AS payroll
        FROM team_costs WHERE path LIKE '% / %' GROUP BY split_part(path, ' / ', 2)
    """,
}
LAST = "division_costs"


@dataclass(frozen=True, slots=True)
class Scene:
    """A change by the application, and the query that shows it in the source."""

    title: str
    statement: str
    shown: str


_EMPLOYEES = "SELECT id, name, department, salary FROM employees ORDER BY id"
_DEPARTMENTS = "SELECT id, name, parent FROM departments ORDER BY id"

SCENES = (
    Scene(
        "Somebody is hired",
        "INSERT INTO employees (name, department, salary) VALUES ('Signe', 5, 4650)",
        _EMPLOYEES,
    ),
    Scene("A new team", "INSERT INTO departments VALUES (7, 'Sawpit', 2)", _DEPARTMENTS),
    Scene("A department gets another name", "UPDATE departments SET name = 'Works' WHERE id = 2", _DEPARTMENTS),
    Scene("Somebody leaves", "DELETE FROM employees WHERE name = 'Tor'", _EMPLOYEES),
)
RESULT = "SELECT path, people, payroll FROM team_costs ORDER BY path"
"""The watched query: every scene changes its result."""
