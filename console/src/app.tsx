// The pages and their addresses.
import { useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { Link, Route, Router, Switch, useLocation } from 'wouter';
import { get, inProject } from './api/client';
import { useProjects } from './api/queries';
import { useToken } from './api/session';
import { Frame } from './frame/Frame';
import { linked, partOf, pathOf, placeOf } from './frame/places';
import { Login } from './frame/Login';
import { lastProject } from './frame/settings';
import { AuditPage, DatasetsPage, FeaturesPage, ModelsPage } from './pages/Lists';
import { CommandPage } from './pages/Command';
import { DatasetPage } from './pages/Dataset';
import { DeploymentPage } from './pages/Deployment';
import { DeploymentsPage } from './pages/Deployments';
import { FeatureServicePage, FeatureViewPage } from './pages/Features';
import { GatewaysPage } from './pages/Gateways';
import { JobPage } from './pages/Job';
import { JobsPage } from './pages/Jobs';
import { LineagePage } from './pages/Lineage';
import { MonitoringPage } from './pages/Monitoring';
import { OverviewPage } from './pages/Overview';
import { RunPage, RunsPage } from './pages/Runs';
import { SweepPage, SweepsPage } from './pages/Sweeps';
import { Empty, Failed, Wait } from './parts/State';

export function App() {
  const token = useToken();
  const client = useQueryClient();
  useEffect(() => {
    if (!token) client.clear(); // what one reader saw is not the next one's
  }, [token, client]);
  if (!token) return <Login />;
  return (
    <Router base="/console">
      <Switch>
        <Route path="/p/:project/*?">{({ project }) => <InProject key={project} project={partOf(project)} />}</Route>
        <Route path="/"><FirstProject /></Route>
        <Route path="/command"><CommandPage /></Route>
        <Route><NotFound /></Route>
      </Switch>
    </Router>
  );
}

/** Where a reader begins: the project seen last, else the first one. */
function FirstProject() {
  const projects = useProjects();
  const [, go] = useLocation();
  const last = lastProject.read();
  const name = projects.rows.find((p) => p.name === last)?.name ?? projects.rows[0]?.name;
  const names = [...new Set([name, ...projects.rows.map((p) => p.name)])].slice(0, 100).join(' ');
  useEffect(() => {
    if (!name) return;
    const to = linked(window.location.hash);
    if (!to || to.kind === 'runs') {
      go(pathOf(name, ...(to ? ['runs'] : [])), { replace: true });
      return;
    }
    const gone = new AbortController();
    void projectOf(`${to.kind}s`, to.name, names.split(' '), gone.signal).then((found) => {
      if (!gone.signal.aborted) go(placeOf(found ?? name, to.kind, to.name) ?? '/', { replace: true }); // whose page says that there is none
    });
    return () => gone.abort();
  }, [name, names, go]);
  if (projects.loading || name) return <Wait what="Loading projects …" />;
  if (projects.error) return <Failed error={projects.error} again={projects.again} />;
  return (
    <Empty title="No projects" command={'falaj apply -f project.yaml\n\n# project.yaml\napi_version: falaj/v1\nkind: Project\nname: nyc'}>
      A project holds data, models, their members and their keys. Make one, or ask for a role in one; then reload this page.
    </Empty>
  );
}

/** The project of an object: links of MLflow's clients do not say it. */
async function projectOf(section: string, name: string, projects: readonly string[], signal: AbortSignal) {
  for (const p of projects) {
    if (signal.aborted) return;
    try {
      await get<unknown>(inProject(p, section, name), signal);
      return p;
    } catch {
      // it is another's, or the next request fails as well
    }
  }
}

function InProject({ project }: { project: string }) {
  return (
    <Frame project={project}>
      <Switch>
        <Route path="/p/:project"><OverviewPage project={project} /></Route>
        <Route path="/p/:project/deployments"><DeploymentsPage project={project} /></Route>
        <Route path="/p/:project/deployments/:name">{({ name }) => <DeploymentPage key={name} project={project} name={partOf(name)} />}</Route>
        <Route path="/p/:project/gateways"><GatewaysPage project={project} /></Route>
        <Route path="/p/:project/monitoring"><MonitoringPage project={project} /></Route>
        <Route path="/p/:project/jobs"><JobsPage project={project} /></Route>
        <Route path="/p/:project/jobs/:id">{({ id }) => <JobPage key={id} project={project} id={partOf(id)} />}</Route>
        <Route path="/p/:project/runs"><RunsPage project={project} /></Route>
        <Route path="/p/:project/runs/:ids">{({ ids }) => <RunPage key={ids} project={project} ids={partOf(ids).split(',')} />}</Route>
        <Route path="/p/:project/sweeps"><SweepsPage project={project} /></Route>
        <Route path="/p/:project/sweeps/:name">{({ name }) => <SweepPage key={name} project={project} name={partOf(name)} />}</Route>
        <Route path="/p/:project/datasets"><DatasetsPage project={project} /></Route>
        <Route path="/p/:project/datasets/:ref">{({ ref }) => <DatasetPage project={project} reference={partOf(ref)} />}</Route>
        <Route path="/p/:project/features"><FeaturesPage project={project} /></Route>
        <Route path="/p/:project/features/:ref">{({ ref }) => <FeatureViewPage project={project} reference={partOf(ref)} />}</Route>
        <Route path="/p/:project/services/:ref">{({ ref }) => <FeatureServicePage project={project} reference={partOf(ref)} />}</Route>
        <Route path="/p/:project/lineage/:thing">{({ thing }) => <LineagePage key={thing} project={project} thing={partOf(thing)} />}</Route>
        <Route path="/p/:project/models"><ModelsPage project={project} /></Route>
        <Route path="/p/:project/audit"><AuditPage project={project} /></Route>
        <Route path="/p/:project/*"><NotFound project={project} /></Route>
      </Switch>
    </Frame>
  );
}

/** An address that no page has. */
function NotFound({ project }: { project?: string }) {
  const [at] = useLocation();
  return (
    <Empty title="Page not found">
      The console has no page {partOf(at)}. <Link href={project ? pathOf(project) : '/'}>{project ? `Overview of ${project}` : 'Projects'}</Link>
    </Empty>
  );
}
