import { Alert, Button, PasswordInput } from '@mantine/core';
import { useEffect, useState, type FormEvent } from 'react';
import { get, Problem, providers, type Provider, type Whoami } from '../api/client';
import { byCookie, loginProblem, session } from '../api/session';
import { Mark } from '../parts/Icon';

export function Login() {
  const [token, setToken] = useState('');
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState('');
  const [refused, setRefused] = useState('');
  const [choices, setChoices] = useState<readonly Provider[]>();
  const why = session.why();
  useEffect(() => {
    setRefused(loginProblem());
    const gone = new AbortController();
    void providers(gone.signal).then(({ list, loggedIn }) => {
      if (gone.signal.aborted) return;
      if (loggedIn) session.begin(byCookie);
      else setChoices(list);
    });
    return () => gone.abort();
  }, []);
  const enter = async (e: FormEvent) => {
    e.preventDefault();
    const pasted = token.trim();
    // A header takes visible ASCII only; anything else is no token.
    if (!/^[\x21-\x7e]{8,512}$/.test(pasted)) {
      setProblem('This is not a valid token. Paste the complete token, without spaces or line breaks.');
      return;
    }
    setBusy(true);
    setProblem('');
    try {
      await get<Whoami>('/api/v1/whoami', undefined, pasted);
      session.begin(pasted);
    } catch (x) {
      setProblem(x instanceof Problem && x.status === 401 ? 'The token is unknown, revoked or expired.' : x instanceof Error ? x.message : String(x));
      setBusy(false);
    }
  };
  const next = encodeURIComponent(window.location.pathname + window.location.search);
  const many = (choices?.length ?? 0) > 0;
  return (
    <main className="login">
      <form onSubmit={(e) => void enter(e)} aria-labelledby="login-title">
        <Mark size={44} />
        <h1 id="login-title">Falaj</h1>
        <p className="dim">Data to features, features to training, models to production, and proof of each step.</p>
        {refused && <Alert color="red" variant="light" title="Login failed">{refused}</Alert>}
        {why && !problem && !refused && <Alert color="yellow" variant="light">{why}</Alert>}
        {choices?.map((p) => (
          <Button key={p.name} component="a" href={`/auth/oidc/${encodeURIComponent(p.name)}/login?next=${next}`} fullWidth>Log in with {p.title}</Button>
        ))}
        {many && <p className="dim small or">or</p>}
        <PasswordInput
          label="Access token" name="token" autoComplete="off" spellCheck={false} autoFocus={!many} data-autofocus value={token} error={problem || undefined} disabled={busy}
          onChange={(e) => setToken(e.currentTarget.value)}
        />
        <Button type="submit" variant={many ? 'default' : 'filled'} fullWidth loading={busy} disabled={!token.trim()}>Log in{many && ' with a token'}</Button>
        <p className="dim small">
          The token stays in this browser tab and ends with it. <code>falaj up</code> prints the first one; <code>falaj token create</code> makes more.
        </p>
      </form>
    </main>
  );
}
