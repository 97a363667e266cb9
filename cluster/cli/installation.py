"""`nodeside-cluster crds`, `manifests`, `install`, `uninstall` and `import`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster.cli.options import (
    INSTALLING,
    NAMESPACE,
    Connection,
    explain_missing_role,
    with_connection,
    with_install_options,
)
from nodeside.errors import UsageError

if TYPE_CHECKING:
    from cluster.install.manifests import InstallSettings

FORMATS = ("yaml", "helm", "kustomize")


@click.command()
def crds() -> None:
    """Print the custom resource definitions, as YAML."""
    from cluster.install.crds import crd_documents
    from cluster.install.manifests import to_yaml

    click.echo(to_yaml(crd_documents()), nl=False)


@click.command()
@NAMESPACE
@with_install_options
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="What to make.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Directory for the chart or the base."
)
@click.option(
    "--driver",
    "-f",
    "driver_file",
    type=click.Path(path_type=Path),
    help="Instead: the DeviceClasses and ResourceClaimTemplates for the devices of this "
    "driver.yaml that are exposed by DRA. The directory it is in will do.",
)
@click.option(
    "--extended-resource/--no-extended-resource",
    "extended",
    default=True,
    help="With --driver: whether pods may ask for such devices by `limits` too.",
)
@click.pass_context
def manifests(
    context: click.Context,
    *,
    namespace: str,
    chosen: Mapping[str, Any],
    format: str,
    output: Path | None,
    driver_file: Path | None,
    extended: bool,
) -> None:
    """Print everything that `install` applies, as YAML for kubectl.

    With `--format helm` or `kustomize`: make a directory of it, a Helm chart or a base. The other
    options are then the chart's default values.
    """
    if driver_file is not None:
        _print_device_classes(context, driver_file, extended=extended)
        return
    from cluster.install.manifests import IMAGE, all_manifests, to_yaml

    if _is_given(context, "extended"):
        raise click.UsageError("--extended-resource needs --driver")
    if output is None and format != FORMATS[0]:
        raise click.UsageError(f"--format {format} makes a directory: add --output DIR")
    if output is not None and format == FORMATS[0]:
        raise click.UsageError("--output is for --format helm and kustomize; else: > FILE")
    installation = _settings_from(namespace, chosen)
    if not chosen["image"]:
        click.echo(
            f"note: without --image, the controller's image is {IMAGE}, which is on no registry",
            err=True,
        )
    if output is None:
        click.echo(to_yaml(all_manifests(installation)), nl=False)
    else:
        _make_directory(format, output, installation)


def _print_device_classes(context: click.Context, path: Path, *, extended: bool) -> None:
    from cluster.install.device_classes import device_classes
    from cluster.install.manifests import to_yaml
    from nodeside.spec import load

    options_of_driver = ("driver_file", "extended")
    for option in context.command.params:
        if option.name not in options_of_driver and _is_given(context, option.name):
            raise click.UsageError(
                f"--driver does not go with {option.opts[0]}, an option of the installation"
            )
    driver = load(path / "driver.yaml" if path.is_dir() else path)
    click.echo(to_yaml(device_classes(driver, extended=extended)), nl=False)


def _is_given(context: click.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name or "")
    return source not in (None, click.core.ParameterSource.DEFAULT)


def _make_directory(format: str, output: Path, installation: InstallSettings) -> None:
    from cluster.install.directory import write_directory

    if format == "helm":
        from cluster.install.helm import chart_files

        write_directory(output, chart_files(installation), main="Chart.yaml")
        # Helm may take a bare name for a repository.
        place = output if output.is_absolute() else f"./{output}"
        options = f"--namespace {installation.namespace} --create-namespace"
        click.echo(f"made {output}; next: helm install nodeside {place} {options}")
    else:
        from cluster.install.kustomize import KUSTOMIZATION, NAMES, base_files

        write_directory(output, base_files(installation), main=KUSTOMIZATION, names=NAMES)
        click.echo(f"made {output}; next: kubectl apply --server-side -k {output}")


@click.command()
@explain_missing_role(INSTALLING)
@with_connection
@with_install_options
def install(*, connection: Connection, chosen: Mapping[str, Any]) -> None:
    """Install nodeside, or upgrade it.

    Applies definitions, rules and the controller, in order.
    """
    from cluster.install.install import install as apply_all
    from cluster.install.manifests import NotInstallable, all_manifests

    if not chosen["image"]:
        raise NotInstallable(
            "--image is missing: where do the nodes pull the controller from?",
            hint="make the image and push it (images/README.md), then: nodeside-cluster install "
            "--image registry.example.com/nodeside/nodeside-cluster:TAG",
        )
    documents = all_manifests(_settings_from(connection.namespace, chosen))
    _print_steps(apply_all(connection.open(), documents))


@click.command()
@explain_missing_role(INSTALLING)
@with_connection
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds for the drivers to be unloaded.",
)
def uninstall(*, connection: Connection, yes: bool, timeout: float) -> None:
    """Unload all drivers, and remove nodeside.

    Deletes all Drivers, waits until they are unloaded, then deletes the controller and the
    definitions.

    The namespace goes too, with everything in it, however nodeside was installed. Says what holds
    a module.
    """
    from cluster.install.manifests import manifests_of_any
    from cluster.install.uninstall import uninstall as delete_all

    documents = manifests_of_any(connection.namespace)
    if not yes:
        question = (
            "Delete every Driver, nodeside itself, and the namespace "
            f"{connection.namespace} with everything in it?"
        )
        if not click.confirm(question):
            click.echo("nothing was deleted")
            return
    _print_steps(delete_all(connection.open(), documents, deadline=timeout))


@click.command(name="import")
@click.argument("module", type=click.Path(path_type=Path))
@click.option(
    "--image",
    default="registry.example.com/drivers/change-this:1.0.0",
    help="Pull spec of the driver image.",
)
def import_module(module: Path, image: str) -> None:
    """Convert a Module of KMM to a Driver.

    MODULE is a file with a Module of Kernel Module Management; the Driver is printed.

    What has no counterpart becomes a comment.
    """
    from cluster.cli.kmm_module import convert_module

    try:
        text = module.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {module}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{module} is not UTF-8", hint="save it as UTF-8 text") from error
    click.echo(convert_module(text, str(module), image), nl=False)


COMMANDS = (crds, manifests, install, uninstall, import_module)


def _settings_from(namespace: str, chosen: Mapping[str, Any]) -> InstallSettings:
    from cluster.install.manifests import IMAGE, InstallSettings
    from cluster.install.pull_specs import agent_image_beside

    image = chosen["image"] or IMAGE
    images = {"image": image, "agent_image": chosen["agent_image"] or agent_image_beside(image)}
    return InstallSettings(namespace, **{**chosen, **images})


def _print_steps(steps: Iterable[str]) -> None:
    """Print each step as it is done. A closed pipe (`| head`) does not stop the steps."""
    closed: BrokenPipeError | None = None
    for line in steps:
        if closed is None:
            try:
                click.echo(line)
            except BrokenPipeError as error:
                closed = error
    if closed is not None:
        raise closed
