import { Alert, Button, Code } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { get, post, type Whoami } from '../api/client';
import { Mark } from '../parts/Icon';

/** Lets `falaj login` on some machine log in as the reader. */
export function CommandPage() {
  const asked = new URLSearchParams(window.location.search);
  const challenge = asked.get('challenge') ?? '';
  const state = asked.get('state') ?? '';
  const label = (asked.get('label') ?? '').slice(0, 150);
  const port = Number(asked.get('port'));
  const self = useQuery({ queryKey: ['whoami', ''], queryFn: ({ signal }) => get<Whoami>('/api/v1/whoami', signal), staleTime: Infinity });
  const [code, setCode] = useState('');
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState('');
  const local = Number.isInteger(port) && port > 0 && port < 65536;
  const back = (q: Record<string, string>) => window.location.assign(`http://127.0.0.1:${port}/?${new URLSearchParams({ ...q, state })}`);
  const allow = async () => {
    setBusy(true);
    setProblem('');
    try {
      const answer = await post<{ code: string }>('/api/v1/logins', { challenge, label });
      setCode(answer.code);
    } catch (x) {
      setProblem(x instanceof Error ? x.message : String(x));
    }
    setBusy(false);
  };
  return (
    <main className="login">
      <form onSubmit={(e) => e.preventDefault()} aria-labelledby="command-title">
        <Mark size={44} />
        <h1 id="command-title">Log in a command</h1>
        {code ? (
          <>
            <p>The command needs this code within a minute. Continue, if the command runs on this machine; else paste the code there.</p>
            <Code block>{code}</Code>
            {local && <Button onClick={() => back({ code })} fullWidth>Continue</Button>}
          </>
        ) : (
          <>
            <p>
              <code>falaj login</code> on <b>{label || 'an unnamed machine'}</b> asks to act as <b>{self.data?.name ?? self.data?.id ?? 'you'}</b>, with all your roles.
            </p>
            <Alert color="yellow" variant="light">Allow this only if you started the command yourself, just now. Do not share the code.</Alert>
            {problem && <Alert color="red" variant="light">{problem}</Alert>}
            <Button onClick={() => void allow()} loading={busy} disabled={!challenge} fullWidth>Allow</Button>
            <Button variant="default" onClick={() => (local ? back({}) : window.location.assign('/console/'))} fullWidth>Cancel</Button>
          </>
        )}
      </form>
    </main>
  );
}
