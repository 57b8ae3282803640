// The page without a token, or with one that is no longer valid.

import { html } from "./vendor/htm-preact-3.1.1.js";

export function Unauthorised({ problem, askNow }) {
  const open = (event) => {
    event.preventDefault();
    // The service takes the token from the address, puts it into a cookie and leads back here.
    location.assign(`./?${new URLSearchParams({ token: event.target.elements.token.value.trim() })}`);
  };
  return html`<main class="alone" id="main">
    <img src="icon.svg" alt="" width="48" height="48" />
    <h1>This service wants its token</h1>
    <p>
      A service of <code>dask-mars-web</code> has it in <code>connection.json</code> in its directory, and printed
      where that is when it started. <code>Runtime.serve</code> returns a server whose <code>link</code> has it. On
      Dask's scheduler it is the setting <code>dask-mars.web.token</code>. A token that worked before holds no longer once the service was started anew.
    </p>
    <form onSubmit=${open} autocomplete="off">
      <label for="token">Token</label>
      <div class="field">
        <input id="token" name="token" type="password" required spellcheck="false" autocomplete="off" />
        <button class="primary">Open</button>
      </div>
    </form>
    <p class="faint">
      The service says: “${problem.message}” ${" "}
      <button type="button" class="link" onClick=${askNow}>Try again without</button>
    </p>
  </main>`;
}
