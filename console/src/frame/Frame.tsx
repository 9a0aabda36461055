// What is around every page: navigation, the project, the keyboard, the link to
// the server.
import { ActionIcon, NativeSelect, useMantineColorScheme } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useEffect, useMemo, useState, type ReactNode } from 'react';
import { Link, useLocation } from 'wouter';
import { get, logOut, type Whoami } from '../api/client';
import { useFollow, useLive } from '../api/live';
import { useProjects } from '../api/queries';
import { Icon, Mark, type IconName } from '../parts/Icon';
import { Help } from './Help';
import { useKeys } from './keys';
import { kindName, partsOf, pathOf } from './places';
import { Search } from './Search';
import { lastProject, setZone, useZone } from './settings';

export const pages: { path: string; name: string; icon: IconName; key: string }[] = [
  { path: '', name: 'Overview', icon: 'overview', key: 'o' },
  { path: 'deployments', name: 'Deployments', icon: 'deployments', key: 'd' },
  { path: 'gateways', name: 'Gateways', icon: 'gateways', key: 'w' },
  { path: 'monitoring', name: 'Monitoring', icon: 'monitoring', key: 'm' },
  { path: 'jobs', name: 'Jobs', icon: 'jobs', key: 'j' },
  { path: 'runs', name: 'Runs', icon: 'runs', key: 'e' },
  { path: 'sweeps', name: 'Sweeps', icon: 'sweeps', key: 'x' },
  { path: 'datasets', name: 'Datasets', icon: 'datasets', key: 's' },
  { path: 'features', name: 'Features', icon: 'features', key: 'f' },
  { path: 'models', name: 'Models', icon: 'models', key: 'r' },
  { path: 'audit', name: 'Audit', icon: 'audit', key: 'a' },
];

/** Pages of objects that are listed elsewhere, or that begin with a search. */
const within: Record<string, { path: string; name: string }> = { services: { path: 'features', name: 'Features' }, lineage: { path: '', name: 'Lineage' } };

const links = { live: 'Live', connecting: 'Connecting', away: 'No connection', refused: 'Not live' } as const;
const linkTitles = {
  live: 'Changes are shown as they happen.',
  connecting: 'Connecting to the event stream.',
  away: 'The server is unavailable; reconnecting.',
  refused: 'Your token has no permission for the event stream; pages are refreshed periodically.',
} as const;

export function Frame({ project, children }: { project: string; children: ReactNode }) {
  const [location, go] = useLocation();
  const { colorScheme, setColorScheme } = useMantineColorScheme({ keepTransitions: true }); // else Mantine adds a <style> element
  const zone = useZone();
  const [help, setHelp] = useState(false);
  const live = useLive();
  const projects = useProjects();
  const who = useQuery({ queryKey: ['whoami', ''], queryFn: ({ signal }) => get<Whoami>('/api/v1/whoami', signal), staleTime: Infinity });
  useFollow(project);
  useEffect(() => lastProject.keep(project), [project]);

  const { section, object } = partsOf(location);
  const page = within[section] ?? pages.find((p) => p.path === section);
  useEffect(() => {
    document.title = [object, page?.name, project, 'Falaj'].filter(Boolean).join(' · ');
  }, [object, page, project]);

  const nextScheme = colorScheme === 'auto' ? 'light' : colorScheme === 'light' ? 'dark' : 'auto';
  const nextZone = zone === 'utc' ? 'local' : 'utc';
  const keys = useMemo(() => {
    const handlers: Record<string, () => void> = {
      '?': () => setHelp(true),
      '/': () => document.querySelector<HTMLElement>('[data-filter]')?.focus(),
      t: () => setColorScheme(nextScheme),
      u: () => setZone(nextZone),
      Escape: () => object && go(pathOf(project, page?.path ?? '')),
    };
    for (const p of pages) handlers[`g ${p.key}`] = () => go(pathOf(project, p.path));
    return handlers;
  }, [go, nextScheme, nextZone, object, page, project, setColorScheme]);
  useKeys(keys);

  const names = projects.rows.map((p) => p.name);
  return (
    <div className="frame">
      <a className="skip" href="#content" onClick={(e) => (e.preventDefault(), document.getElementById('content')?.focus())}>Skip to content</a>
      <aside>
        <Link href={pathOf(project)} className="brand"><Mark /> Falaj</Link>
        <NativeSelect
          aria-label="Project" size="sm" value={project} data={names.includes(project) ? names : [project, ...names]}
          onChange={(e) => go(pathOf(e.currentTarget.value, section))}
        />
        <nav aria-label="Pages">
          {pages.map((p) => (
            <Link key={p.path} href={pathOf(project, p.path)} aria-current={p.path === (page?.path ?? section) && section !== 'lineage' ? 'page' : undefined}>
              <Icon name={p.icon} /> <span>{p.name}</span>
            </Link>
          ))}
        </nav>
        <div className="who">
          <span className="name" title={who.data?.id}>{who.data?.name || who.data?.kind || ' '}</span>
          <button type="button" onClick={() => void logOut()}>
            <Icon name="leave" size={16} /> Log out
          </button>
        </div>
      </aside>
      <div className="page">
        <header className="top">
          <div className="crumbs">
            {object ? (
              <>
                {section === 'lineage' ? <span>Lineage</span> : <Link href={pathOf(project, page?.path ?? '')}>{page?.name}</Link>}
                <span aria-hidden="true">/</span>
                <h1 title={object}>{object.replace(/^[a-z]+_[a-z]+(?= )/, kindName).replace(/^.*,.*$/, (all) => `${all.split(',').length} beside each other`)}</h1>
              </>
            ) : (
              <h1>{page?.name ?? 'Not found'}</h1>
            )}
          </div>
          <Search project={project} />
          <span className={`link ${live.link}`} role="status" title={linkTitles[live.link]}>{links[live.link]}</span>
          <button type="button" className="zone" onClick={() => setZone(nextZone)} title={`Times are in ${zone === 'utc' ? 'UTC' : 'local time'}; point at one for both`}>
            {zone === 'utc' ? 'UTC' : 'Local'}
          </button>
          <ActionIcon variant="subtle" color="gray" onClick={() => setColorScheme(nextScheme)} aria-label={`Colours: ${colorScheme === 'auto' ? 'as the system' : colorScheme}`} title="Light, dark or system theme">
            <Icon name={colorScheme === 'auto' ? 'system' : colorScheme === 'dark' ? 'moon' : 'sun'} />
          </ActionIcon>
          <ActionIcon variant="subtle" color="gray" onClick={() => setHelp(true)} aria-label="Keyboard help" title="Keyboard (?)">
            <Icon name="help" />
          </ActionIcon>
        </header>
        <main id="content" tabIndex={-1}>{children}</main>
      </div>
      <Help open={help} close={() => setHelp(false)} />
    </div>
  );
}
