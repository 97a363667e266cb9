"""`nodeside spec …`: check a driver.yaml, and print what is generated from its schema."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.group()
def spec() -> None:
    """Check a driver.yaml; print its schema and its reference."""


@spec.command()
@click.argument("file", type=click.Path(path_type=Path), default="driver.yaml")
def check(file: Path) -> None:
    """Check FILE (driver.yaml) and name every mistake in it."""
    from nodeside.spec import load
    from nodeside.spec.model import Hardware

    driver = load(file / "driver.yaml" if file.is_dir() else file)
    names = ", ".join(module.name for module in driver.spec.modules)
    click.echo(f"{file}: driver {driver.name} {driver.spec.version}, modules {names or 'none'}")
    if driver.spec.hardware == Hardware():
        click.echo("note: without spec.hardware, a cluster puts this driver on every node")


@spec.command("json-schema")
def json_schema() -> None:
    """Print the JSON schema of driver.yaml, for editors."""
    from nodeside.spec import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@spec.command()
@click.option(
    "--kind",
    type=click.Choice(["Driver", "NodeDriver"]),
    default="Driver",
    show_default=True,
    help="Which custom resource.",
)
def openapi(kind: str) -> None:
    """Print the OpenAPI schema of a custom resource."""
    from nodeside.spec import node_driver_schema, openapi_schema

    schema = openapi_schema() if kind == "Driver" else node_driver_schema()
    click.echo(json.dumps(schema, indent=2))


@spec.command()
def reference() -> None:
    """Print the reference of driver.yaml, docs/driver-yaml.md, in Markdown."""
    from nodeside.spec import render_reference

    click.echo(render_reference(), nl=False)
