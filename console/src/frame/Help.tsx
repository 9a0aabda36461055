import { Button, Kbd } from '@mantine/core';
import { useEffect, useRef } from 'react';

const groups: [string, [string[], string][]][] = [
  ['Go to', [[['g', 'o'], 'Overview'], [['g', 'd'], 'Deployments'], [['g', 'w'], 'Gateways'], [['g', 'm'], 'Monitoring'], [['g', 'j'], 'Jobs'], [['g', 'x'], 'Sweeps'], [['g', 's'], 'Datasets'], [['g', 'f'], 'Features'], [['g', 'r'], 'Models'], [['g', 'a'], 'Audit']]],
  ['Tables and charts', [[['/'], 'Filter'], [['↑'], 'Previous row or cell'], [['↓'], 'Next row or cell'], [['Enter'], 'Open'], [['Home'], 'First row'], [['End'], 'Last row']]],
  ['Everywhere', [[['Ctrl', 'K'], 'Search the project'], [['t'], 'Light, dark or system theme'], [['u'], 'UTC or local time'], [['Esc'], 'Close, or return to the list'], [['?'], 'This help']]],
];

export function Help({ open, close }: { open: boolean; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = dialog.current!;
    if (open && !d.open) d.showModal();
    if (!open && d.open) d.close();
  }, [open]);
  return (
    <dialog ref={dialog} className="help" aria-labelledby="help-title" onClose={close} onClick={(e) => e.target === dialog.current && close()}>
      <div>
        <header>
          <h2 id="help-title">Keyboard</h2>
          <Button variant="default" size="xs" onClick={close}>Close</Button>
        </header>
        <div className="groups">
          {groups.map(([title, keys]) => (
            <section key={title}>
              <h3>{title}</h3>
              <dl>
                {keys.map(([k, what]) => (
                  <div key={what}>
                    <dt>{k.map((one) => <Kbd key={one} size="sm">{one}</Kbd>)}</dt>
                    <dd>{what}</dd>
                  </div>
                ))}
              </dl>
            </section>
          ))}
        </div>
      </div>
    </dialog>
  );
}
