"""What users of Optuna do with a storage, each in a study of its own."""

import math
import pickle

import optuna
from chosen import storage
from optuna.trial import TrialState

s = storage()


def refused(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"it did not raise {kind.__name__}")


# Ask and tell, with distributions given beforehand.
study = optuna.create_study(storage=s, study_name="asked", direction="maximize")
space = {"x": optuna.distributions.FloatDistribution(0, 1), "odd": optuna.distributions.CategoricalDistribution([math.inf, 1])}
for i in range(10):
    trial = study.ask(space)
    study.tell(trial, trial.params["x"])
failed = study.ask()
study.tell(failed, state=TrialState.FAIL)
refused(ValueError, lambda: study.tell(failed, 1.0))
refused(optuna.exceptions.UpdateFinishedTrialError, lambda: s.set_trial_user_attr(failed._trial_id, "k", 1))
assert study.best_value == max(t.value for t in study.trials if t.state == TrialState.COMPLETE)
assert study.best_trial.params["odd"] in (math.inf, 1)

# The name is taken; what is loaded is the same.
refused(optuna.exceptions.DuplicatedStudyError, lambda: optuna.create_study(storage=s, study_name="asked"))
again = optuna.load_study(storage=storage(), study_name="asked")
assert [t.params for t in again.trials] == [t.params for t in study.trials], "a reader sees another study"
refused(KeyError, lambda: optuna.load_study(storage=s, study_name="nobody's"))

# A parameter keeps its kind.
trial = study.ask()
refused(ValueError, lambda: s.set_trial_param(trial._trial_id, "x", 1, optuna.distributions.IntDistribution(0, 3)))
study.tell(trial, state=TrialState.PRUNED)

# Several objectives, and resuming in another process, which is what a pickle is.
study = optuna.create_study(storage=s, study_name="front", directions=["minimize", "maximize"], sampler=optuna.samplers.NSGAIISampler(seed=1))
study.optimize(lambda t: (t.suggest_float("x", 0, 1), t.suggest_float("y", 0, 1)), n_trials=20)
more = pickle.loads(pickle.dumps(study))
more.optimize(lambda t: (t.suggest_float("x", 0, 1), t.suggest_float("y", 0, 1)), n_trials=20)
assert len(study.trials) == 40 and study.best_trials
assert optuna.load_study(storage=s, study_name="front").directions == [optuna.study.StudyDirection.MINIMIZE, optuna.study.StudyDirection.MAXIMIZE]

# Trials that are put in the queue, and those of elsewhere.
study = optuna.create_study(storage=s, study_name="queued")
study.enqueue_trial({"x": 0.25}, user_attrs={"by": "hand"})
study.add_trial(optuna.trial.create_trial(params={"x": 0.5}, distributions={"x": optuna.distributions.FloatDistribution(0, 1)}, value=-1.0))
study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=1)
assert [t.params["x"] for t in study.trials] == [0.25, 0.5] and study.trials[0].user_attrs == {"by": "hand"}
assert study.best_value == -1.0

# Samplers and pruners that keep their state in attributes.
for sampler, pruner in [
    (optuna.samplers.CmaEsSampler(seed=1), optuna.pruners.HyperbandPruner(max_resource=9)),
    (optuna.samplers.QMCSampler(seed=1), optuna.pruners.SuccessiveHalvingPruner()),
    (optuna.samplers.GridSampler({"x": [0, 1, 2], "y": [0, 1]}), optuna.pruners.NopPruner()),
]:
    study = optuna.create_study(storage=s, study_name=type(sampler).__name__, sampler=sampler, pruner=pruner)

    def objective(t):
        v = t.suggest_float("x", 0, 2) + t.suggest_float("y", 0, 1)
        for step in range(1, 10):
            t.report(v / step, step)
            if t.should_prune():
                raise optuna.TrialPruned
        return v

    study.optimize(objective, n_trials=40)
    states = {t.state for t in study.trials}
    assert states <= {TrialState.COMPLETE, TrialState.PRUNED} and TrialState.COMPLETE in states, states
    if isinstance(sampler, optuna.samplers.GridSampler):
        assert len({tuple(sorted(t.params.items())) for t in study.trials}) == 6, "the grid was not walked"

# A trial that raises has failed; what is not a number has failed, too.
study = optuna.create_study(storage=s, study_name="bad")
study.optimize(lambda t: 1 / 0, n_trials=1, catch=ZeroDivisionError)
study.optimize(lambda t: math.nan, n_trials=1)
study.set_user_attr("note", {"nan": math.nan, "é": [1, None]})
assert [t.state for t in study.trials] == [TrialState.FAIL] * 2
note = optuna.load_study(storage=s, study_name="bad").user_attrs["note"]
assert math.isnan(note["nan"]) and note["é"] == [1, None]

names = {x.study_name for x in optuna.get_all_study_summaries(s)}
assert {"asked", "front", "queued", "bad"} <= names
optuna.delete_study(storage=s, study_name="bad")
assert "bad" not in optuna.get_all_study_names(s)
refused(KeyError, lambda: optuna.delete_study(storage=s, study_name="bad"))
print("done")
