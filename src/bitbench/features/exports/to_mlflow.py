"""MLflow: an experiment per study, a run per point. Without an address, where MLFLOW_TRACKING_URI says."""

import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from bitbench.features.exports.content import ExportedPoint, ExportedStudy, ExportError

_ID = "bitbench.point"
_LONGEST = 500  # characters of a parameter; older servers take no more


def export(study: ExportedStudy, url: str | None) -> str:
    client = MlflowClient(tracking_uri=url)
    try:
        experiment = _experiment(client, study.name)
        for point in study.points:
            _write(client, experiment, point, study)
    except (MlflowException, OSError) as error:
        raise ExportError(f"MLflow did not take the figures: {' '.join(str(error).split())[:300]}") from error
    return f"wrote {len(study.points)} runs to the experiment {study.name} of {client.tracking_uri}\n"


def _experiment(client: MlflowClient, name: str) -> str:
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known is not None else client.create_experiment(name))


def _write(client: MlflowClient, experiment: str, point: ExportedPoint, study: ExportedStudy) -> None:
    known = client.search_runs([experiment], f"tags.`{_ID}` = '{point.id}'", max_results=1)
    run = known[0] if known else client.create_run(experiment, run_name=point.name, tags={_ID: point.id})
    now = int(time.time() * 1000)
    facts = {**study.facts, **point.labels, **point.facts}
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(f.name + ending, value, now, 0) for f in point.figures for ending, value in f.bounds()],
        params=[Param(name, value[:_LONGEST]) for name, value in facts.items()],
    )
    client.set_terminated(run.info.run_id)
