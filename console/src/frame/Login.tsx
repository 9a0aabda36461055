import { Alert, Button, PasswordInput } from '@mantine/core';
import { useState, type FormEvent } from 'react';
import { get, Problem, type Whoami } from '../api/client';
import { session } from '../api/session';
import { Mark } from '../parts/Icon';

export function Login() {
  const [token, setToken] = useState('');
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState('');
  const why = session.why();
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
  return (
    <main className="login">
      <form onSubmit={(e) => void enter(e)} aria-labelledby="login-title">
        <Mark size={44} />
        <h1 id="login-title">Falaj</h1>
        <p className="dim">Data to features, features to training, models to production, and proof of each step.</p>
        {why && !problem && <Alert color="yellow" variant="light">{why}</Alert>}
        <PasswordInput
          label="Access token" name="token" autoComplete="off" spellCheck={false} autoFocus data-autofocus value={token} error={problem || undefined} disabled={busy}
          onChange={(e) => setToken(e.currentTarget.value)}
        />
        <Button type="submit" fullWidth loading={busy} disabled={!token.trim()}>Log in</Button>
        <p className="dim small">
          The token stays in this browser tab and ends with it. <code>falaj up</code> prints the first one; <code>falaj token create</code> makes more.
        </p>
      </form>
    </main>
  );
}
