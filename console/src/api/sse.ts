// Server-sent events, read from a fetch: EventSource cannot send a token.

export interface Message {
  id: string;
  event: string;
  data: string;
}

/**
 * Parser takes text as it arrives and gives whole messages. `id` is the last id
 * seen, also of a message without data: from there a reader resumes.
 */
export class Parser {
  id = '';
  /** ms that the server asks to wait before connecting again; 0 when it did not. */
  retry = 0;
  private rest = '';
  private event = '';
  private data: string[] = [];

  feed(text: string): Message[] {
    const out: Message[] = [];
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop() ?? '';
    for (const raw of lines) {
      const line = raw.endsWith('\r') ? raw.slice(0, -1) : raw;
      if (line === '') {
        if (this.data.length > 0) out.push({ id: this.id, event: this.event || 'message', data: this.data.join('\n') });
        this.event = '';
        this.data = [];
        continue;
      }
      const colon = line.indexOf(':');
      if (colon === 0) continue; // a comment
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (field === 'event') this.event = value;
      else if (field === 'data') this.data.push(value);
      else if (field === 'id' && !value.includes('\0')) this.id = value;
      else if (field === 'retry' && /^\d+$/.test(value)) this.retry = Number(value);
    }
    return out;
  }
}
