package gauges

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/falaj-ml/falaj/internal/backup"
	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/lifecycle"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/usecase/backups"
)

// State are the state of the installation as Prometheus series. What the database
// says is read when somebody asks and it is older than stateAge, within stateTime; a
// database that does not answer leaves what was read last, and its age says so.
type State struct {
	Version string
	Data    string // data directory
	DB      *store.DB
	// Compute is zero on a gateway, which has none of the services below either.
	Compute   compute.Services
	Training  *training.Jobs
	Ingestion *ingestion.Service
	Accounts  *account.Service
	Backups   *backups.Service // nil without backup.dir

	reading sync.Mutex // held while it is read
	mu      sync.Mutex
	last    state
}

const (
	stateAge   = 10 * time.Second
	stateTime  = 3 * time.Second
	maxSources = 1000
)

// state is what was read of the database.
type state struct {
	at, tried time.Time
	took      time.Duration // of a read of the database that finds nothing

	jobs    []training.Count
	ended   map[training.State]int64
	pools   []compute.Pool
	queues  []compute.Queue
	budgets []compute.Budget
	sources []ingestion.Source
	backups []backup.Backup
	expiry  time.Time
}

var (
	buildInfo = prometheus.NewDesc("falaj_build_info", "Always 1; the labels are the versions of Falaj and of the Go compiler.", []string{"version", "go_version"}, nil)
	stateRead = prometheus.NewDesc("falaj_state_read_timestamp_seconds", "Time at which the series of jobs, queues, pools, budgets, sources and tokens were last read from the database.", nil, nil)

	jobsNow     = prometheus.NewDesc("falaj_jobs", "Number of unfinished jobs, by state.", []string{"project", "state"}, nil)
	jobsOldest  = prometheus.NewDesc("falaj_job_oldest_seconds", "Age of the oldest unfinished job since submission, by state; for queued jobs, the longest wait.", []string{"project", "state"}, nil)
	jobsEnded   = prometheus.NewDesc("falaj_jobs_ended_total", "Number of jobs finished since the server started, by state.", []string{"state"}, nil)
	jobsWaiting = prometheus.NewDesc("falaj_workloads_waiting", "Number of pending workloads, by the code of their wait reason, as in falaj job why -o json; at most 2000 are counted.", []string{"reason"}, nil)

	queueRunning = prometheus.NewDesc("falaj_queue_running", "Number of placed workloads of the queue and its child queues.", []string{"queue"}, nil)
	queueWaiting = prometheus.NewDesc("falaj_queue_waiting", "Number of pending workloads of the queue and its child queues.", []string{"queue"}, nil)
	queueUsed    = prometheus.NewDesc("falaj_queue_used", "Resources used by the queue and its child queues: cores, bytes, bytes a second of memory_bandwidth, and counts of accelerators.", []string{"queue", "resource"}, nil)
	queueQuota   = prometheus.NewDesc("falaj_queue_quota", "Quota of the queue, in the same units as falaj_queue_used; absent without a limit.", []string{"queue", "resource"}, nil)

	poolOpen     = prometheus.NewDesc("falaj_pool_open", "1 if the pool accepts workloads, 0 if it is closed, misplaced, or its engine is not configured.", []string{"pool", "engine"}, nil)
	poolUp       = prometheus.NewDesc("falaj_pool_engine_up", "1 if the pool's engine reports its nodes, 0 otherwise.", []string{"pool", "engine"}, nil)
	poolRunning  = prometheus.NewDesc("falaj_pool_running", "Number of workloads placed in the pool.", []string{"pool"}, nil)
	poolCapacity = prometheus.NewDesc("falaj_pool_capacity", "Capacity of all nodes of the pool: cores, bytes, bytes a second of memory_bandwidth, and counts of accelerators.", []string{"pool", "resource"}, nil)
	poolUsed     = prometheus.NewDesc("falaj_pool_used", "Resources of the pool allocated to workloads, in the same units as falaj_pool_capacity.", []string{"pool", "resource"}, nil)
	poolNodes    = prometheus.NewDesc("falaj_pool_nodes", "Number of nodes of the pool, by state: ready, down, quarantined or maintenance.", []string{"pool", "state"}, nil)

	budgetLimit = prometheus.NewDesc("falaj_budget_limit", "Monthly budget of the project, in the currency.", []string{"project", "currency"}, nil)
	budgetSpent = prometheus.NewDesc("falaj_budget_spent", "Cost of the project this month, in the currency.", []string{"project", "currency"}, nil)

	sourceOK   = prometheus.NewDesc("falaj_source_ok", "1 if the last run of a scheduled source succeeded, 0 if it failed; absent before the first run.", []string{"project", "source"}, nil)
	sourceLate = prometheus.NewDesc("falaj_source_overdue_seconds", "Delay of the overdue scheduled run of a source; 0 if none is overdue.", []string{"project", "source"}, nil)

	backupLast  = prometheus.NewDesc("falaj_backup_last_success_timestamp_seconds", "Snapshot time of the newest complete backup in backup.dir; absent without a backup.", nil, nil)
	tokenExpiry = prometheus.NewDesc("falaj_service_token_next_expiry_timestamp_seconds", "Earliest expiry of the service account tokens; absent without such a token.", nil, nil)

	diskSize  = prometheus.NewDesc("falaj_disk_size_bytes", "Size of the file system of the data directory.", nil, nil)
	diskFree  = prometheus.NewDesc("falaj_disk_free_bytes", "Free space on the file system of the data directory.", nil, nil)
	diskFiles = prometheus.NewDesc("falaj_disk_free_files", "Number of free inodes on the file system of the data directory; absent if the file system allocates inodes dynamically.", nil, nil)

	storeLatency = prometheus.NewDesc("falaj_database_latency_seconds", "Latency of the last database read, measured with a query that matches no rows.", nil, nil)
	storeWaiting = prometheus.NewDesc("falaj_database_waiting_writes", "Number of write transactions waiting for the database.", nil, nil)
	leads        = prometheus.NewDesc("falaj_leader", "1 if this process is the leader among the processes that share the database.", []string{"of"}, nil)

	loopFailing = prometheus.NewDesc("falaj_loop_failing_runs", "Number of consecutive failed runs of a background loop; 0 after a success.", []string{"loop"}, nil)
	loopFailed  = prometheus.NewDesc("falaj_loop_failures_total", "Number of failed runs of a background loop since the server started.", []string{"loop"}, nil)
	loopWorked  = prometheus.NewDesc("falaj_loop_last_success_timestamp_seconds", "Time of the last successful run of a background loop; absent before the first.", []string{"loop"}, nil)
)

// Describe implements prometheus.Collector.
func (g *State) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		buildInfo, stateRead, jobsNow, jobsOldest, jobsEnded, jobsWaiting, queueRunning, queueWaiting, queueUsed, queueQuota,
		poolOpen, poolUp, poolRunning, poolCapacity, poolUsed, poolNodes, budgetLimit, budgetSpent, sourceOK, sourceLate, backupLast, tokenExpiry,
		diskSize, diskFree, diskFiles, storeLatency, storeWaiting, leads, loopFailing, loopFailed, loopWorked,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *State) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	instant := func(d *prometheus.Desc, at time.Time, labels ...string) {
		if !at.IsZero() {
			gauge(d, float64(at.UnixMilli())/1000, labels...)
		}
	}
	gauge(buildInfo, 1, g.Version, runtime.Version())
	g.machine(gauge)
	for _, l := range lifecycle.Measured() {
		gauge(loopFailing, float64(l.Failures), l.Name)
		ch <- prometheus.MustNewConstMetric(loopFailed, prometheus.CounterValue, float64(l.Failed), l.Name)
		instant(loopWorked, l.Worked, l.Name)
	}
	if g.Compute.Scheduling == nil { // a gateway has none of the rest
		return
	}
	gauge(leads, one(g.Compute.Scheduling.Schedules()), "scheduling")
	for code, n := range g.Compute.Queues.Waiting() {
		gauge(jobsWaiting, float64(n), string(code))
	}
	s := g.read()
	gauge(storeWaiting, float64(g.DB.Waiting()))
	if s.at.IsZero() {
		return
	}
	instant(stateRead, s.at)
	gauge(storeLatency, s.took.Seconds())
	for state, n := range s.ended {
		ch <- prometheus.MustNewConstMetric(jobsEnded, prometheus.CounterValue, float64(n), string(state))
	}
	s.emit(gauge, instant)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// machine is what is known without the database.
func (g *State) machine(gauge func(*prometheus.Desc, float64, ...string)) {
	var disk unix.Statfs_t
	if err := unix.Statfs(g.Data, &disk); err != nil {
		return
	}
	gauge(diskSize, float64(disk.Blocks)*float64(disk.Bsize))
	gauge(diskFree, float64(disk.Bavail)*float64(disk.Bsize))
	if disk.Files > 0 {
		gauge(diskFiles, float64(disk.Ffree))
	}
}

// read is the state, not older than stateAge where the database answers.
func (g *State) read() state {
	g.reading.Lock()
	defer g.reading.Unlock()
	g.mu.Lock()
	last := g.last
	g.mu.Unlock()
	if time.Since(last.tried) < stateAge {
		return last
	}
	ctx, cancel := context.WithTimeout(identity.With(context.Background(), identity.Loop("metrics")), stateTime)
	defer cancel()
	now, err := g.look(ctx)
	if err != nil {
		now = last
	}
	now.tried = time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = now
	return now
}

// look reads the state.
func (g *State) look(ctx context.Context) (s state, err error) {
	began := time.Now()
	if err := g.DB.View(ctx, func(context.Context, *store.Tx) error { return nil }); err != nil {
		return s, err
	}
	s.took = time.Since(began)
	if s.jobs, s.ended, err = g.Training.Counts(ctx); err != nil {
		return s, err
	}
	if s.pools, err = g.Compute.Pools.ListPools(ctx); err != nil {
		return s, err
	}
	if s.queues, err = g.Compute.Queues.ListQueues(ctx); err != nil {
		return s, err
	}
	if s.budgets, err = g.Compute.Costs.Budgets(ctx, ""); err != nil {
		return s, err
	}
	if s.sources, err = g.Ingestion.Scheduled(ctx, maxSources); err != nil {
		return s, err
	}
	if s.expiry, err = g.Accounts.NextExpiry(ctx); err != nil {
		return s, err
	}
	if g.Backups != nil {
		if s.backups, err = g.Backups.List(ctx); err != nil {
			return s, err
		}
	}
	s.at = time.Now()
	return s, nil
}

// emit gives what was read as series.
func (s state) emit(gauge func(*prometheus.Desc, float64, ...string), instant func(*prometheus.Desc, time.Time, ...string)) {
	for _, c := range s.jobs {
		gauge(jobsNow, float64(c.Jobs), string(c.Project), string(c.State))
		if made := id.Made(string(c.Oldest)); !made.IsZero() {
			gauge(jobsOldest, max(0, s.at.Sub(made).Seconds()), string(c.Project), string(c.State))
		}
	}
	amounts := func(d *prometheus.Desc, name string, parts map[string]float64) {
		for resource, v := range parts {
			gauge(d, v, name, resource)
		}
	}
	for _, q := range s.queues {
		gauge(queueRunning, float64(q.Running), q.Name)
		gauge(queueWaiting, float64(q.Waiting), q.Name)
		amounts(queueUsed, q.Name, amountsOf(q.Used))
		amounts(queueQuota, q.Name, limitsOf(q.Quota))
	}
	for _, p := range s.pools {
		name := string(p.Name)
		gauge(poolOpen, one(!strings.HasPrefix(p.State, "closed")), name, p.Engine)
		gauge(poolUp, one(p.Trouble == ""), name, p.Engine)
		gauge(poolRunning, float64(p.Running), name)
		amounts(poolCapacity, name, amountsOf(p.Capacity))
		amounts(poolUsed, name, amountsOf(p.Used))
		nodes := map[string]int{"ready": 0, "down": 0, "quarantined": 0, "maintenance": 0}
		for _, n := range p.Nodes {
			nodes[n.Condition()]++
		}
		for condition, n := range nodes {
			gauge(poolNodes, float64(n), name, condition)
		}
	}
	for _, b := range s.budgets {
		gauge(budgetLimit, b.Amount, string(b.Project), b.Currency)
		gauge(budgetSpent, b.Spent, string(b.Project), b.Currency)
	}
	for _, src := range s.sources {
		labels := []string{string(src.Project), src.Name}
		if src.Last != nil && src.Last.State.Ended() {
			gauge(sourceOK, one(src.Last.State == ingestion.Succeeded), labels...)
		}
		late := 0.0
		if !src.NextAt.IsZero() {
			late = max(0, s.at.Sub(src.NextAt).Seconds())
		}
		gauge(sourceLate, late, labels...)
	}
	var newest time.Time
	for _, b := range s.backups {
		if b.State == backup.Whole && b.Of.After(newest) {
			newest = b.Of
		}
	}
	instant(backupLast, newest)
	instant(tokenExpiry, s.expiry)
}

// amountsOf are the parts of an amount that are not zero, in cores, bytes and counts.
func amountsOf(a resource.Amount) map[string]float64 {
	parts := map[string]float64{"cpu": a.CPU.Cores(), "memory": float64(a.Memory), "memory_bandwidth": float64(a.MemoryBandwidth)}
	for name, n := range a.Accelerators {
		parts[name] = float64(n)
	}
	for name, v := range parts {
		if v == 0 && name != "cpu" && name != "memory" {
			delete(parts, name)
		}
	}
	return parts
}

// limitsOf are the parts of a limit that are set, of which 0 allows none.
func limitsOf(l resource.Limit) map[string]float64 {
	parts := map[string]float64{}
	if l.CPU != nil {
		parts["cpu"] = l.CPU.Cores()
	}
	if l.Memory != nil {
		parts["memory"] = float64(*l.Memory)
	}
	if l.MemoryBandwidth != nil {
		parts["memory_bandwidth"] = float64(*l.MemoryBandwidth)
	}
	for name, n := range l.Accelerators {
		parts[name] = float64(n)
	}
	return parts
}
